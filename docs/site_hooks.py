"""Hooks of mkdocs.yml: pages from outside docs/, the API reference, and links that lead out of docs/.

Pages are written for the repository, where they link to tests and sources. On the site a link to another page leads to
that page, and a link to any other file of the repository becomes plain text. A link to nothing stays as it is, so that
`mkdocs build --strict` fails.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "experiments/paper/README.md": "experiments/paper/index.md",
    "experiments/tiny_world/README.md": "experiments/tiny_world/index.md",
    "experiments/tiny_world/tables.md": "experiments/tiny_world/tables.md",
}
"""File of the repository -> its page on the site."""
PUBLIC = (
    "train", "resume", "evaluate", "score", "register_method", "runs.callbacks.Callback", "runs.run.RunResult",
    "token_scores.ScoredResponse", "token_scores.TokenScore", "errors.UserError",
)  # fmt: skip
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files, config):
    """Add the pages from outside docs/ with their images, and the reference."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for image in sorted((ROOT / "experiments/tiny_world/images").glob("*.svg")):
        name = image.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(image)))
    reference = "\n\n".join(f"::: pivot.{name}" for name in PUBLIC)
    files.append(File.generated(config, "reference.md", content=f"# API reference\n\n{reference}\n"))
    return files


def on_page_markdown(markdown, page, config, files):
    """Turn links of the repository into links of the site."""
    sources = {page_name: source for source, page_name in OUTSIDE.items()}
    source = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def on_site(match):
        mark, text, target = match.groups()
        path, hash_sign, anchor = target.partition("#")
        if not path or ":" in path:
            return match[0]
        inside = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        name = OUTSIDE.get(inside, inside.removeprefix("docs/"))
        if files.get_file_from_path(name) is not None:
            link = posixpath.relpath(name, posixpath.dirname(page.file.src_uri) or ".")
            return f"{mark}[{text}]({link}{hash_sign}{anchor})"
        return text if (ROOT / inside).exists() else match[0]

    return LINK.sub(on_site, markdown)
