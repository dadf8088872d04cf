"""Lets a CUDA build of torchvision be imported beside a CPU build of torch; `make test-vllm` installs it.

torchvision registers fake kernels for `nms` and `qnms` at import, which fails where its compiled operators could not
be loaded. Qwen's image processing needs none of them, so they are declared first. A `.pth` file imports this module
in every process of the environment, vLLM's engine process included.
"""

import sys


class DeclareOperators:
    """Declares the operators at the first import of torchvision, then steps aside."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            # The library must live as long as the process, or its operators are gone again.
            self.library = torch.library.Library("torchvision", "FRAGMENT")
            for operator in ("nms", "qnms"):
                self.library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            sys.modules[__name__].declared = self
        return


sys.meta_path.insert(0, DeclareOperators())
