# A GPU image: `docker build -t pivot .`, then
#   docker run --gpus all --ipc host -v $PWD/runs:/work/runs -v $HOME/.cache/huggingface:/root/.cache/huggingface \
#       pivot train --recipe geo3k-3b
# Not built by this project's tests, which have neither Docker nor a GPU. --build-arg EXTRAS=lora,wandb chooses extras.
FROM nvidia/cuda:12.8.1-cudnn-runtime-ubuntu24.04

ARG EXTRAS=lora,tensorboard
ENV DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 OMP_WAIT_POLICY=PASSIVE
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/pivot
ENV PATH=/opt/pivot/bin:$PATH

# torch first: its layer stays when the sources change.
RUN pip install torch --index-url https://download.pytorch.org/whl/cu128
COPY pyproject.toml LICENSE /src/
COPY docs/package.md /src/docs/package.md
COPY src /src/src
RUN pip install "/src[${EXTRAS}]"

WORKDIR /work
ENTRYPOINT ["pivot"]
CMD ["doctor"]
