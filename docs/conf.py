"""How these pages become a site: `sphinx-build -W --keep-going -b html docs build/site`.

Knows: which pages of the repository are pages of the site, and which marks in them are for tests.
Must not know: what any page says.

The pages are plain Markdown that reads as well on a code host. So there are no directives in them: a list of links
after `<!-- toctree: CAPTION -->` is also the part of the side bar with that caption, and `overview.md`,
`contributing.md` and `changelog.md`, which lead to files above this folder, have the text of those files here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent

project = "policyengine"
extensions = ["myst_parser"]
exclude_patterns = ["__pycache__"]
html_theme = "furo"
html_title = "policyengine"
html_copy_source = False
html_show_copyright = False
nitpicky = True
myst_heading_anchors = 6

ABOVE = {"README.md": "overview", "CONTRIBUTING.md": "contributing", "CHANGELOG.md": "changelog"}
"""Files above this folder, and the pages that stand for them."""

FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?P<name>\[[\w-]+\.md)?\]\((?!\w+:|#)(?P<file>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
"""A relative link from its `]` on, or whole where its text is the name of a file."""

LISTED = re.compile(r"^<!-- toctree: (?P<caption>.*) -->\n\n?(?P<list>(?:[*-] .*\n?)+)", re.MULTILINE)


def rewritten(text: str, folder: Path, page: str) -> str:
    """Return the text of a file in `folder` as that of a page: links lead to pages, from where the page stands."""
    here = (DOCS / page).parent

    def link(match: re.Match[str]) -> str:
        target = (folder / match["file"]).resolve()
        if target.parent == ROOT and target.name in ABOVE:
            target = DOCS / f"{ABOVE[target.name]}.md"
        way = Path(os.path.relpath(target, here)).as_posix()
        name = match["name"] or ""
        if not target.is_relative_to(DOCS):
            return f"{name}](path:{way})"  # no page of the site: the file as it is
        return f"{name and '['}]({way}{match['anchor'] or ''})"  # a link without a text gets the title of the page

    return outside_fences(text, lambda prose: LINK.sub(link, prose))


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """Return the text with a change made everywhere but in blocks of code."""
    return "".join(part if part.startswith("```") else change(part) for part in FENCE.split(text))


def toctrees(text: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the caption of every list that is part of the side bar, and the title and name of each page in it."""
    for match in LISTED.finditer(text):
        yield match["caption"], re.findall(r"^[*-] \[([^]]+)\]\(([^)#]+)\.md\)", match["list"], re.MULTILINE)


def read_source(app: Any, page: str, source: list[str]) -> None:
    """Make a page of the site of what stands in a file."""
    above = next((name for name, known in ABOVE.items() if known == page), None)
    if above:
        app.env.note_dependency(str(ROOT / above))
        source[0] = rewritten((ROOT / above).read_text(encoding="utf-8"), ROOT, page)
        return
    trees = []
    for caption, pages in toctrees(source[0]):
        entries = "\n".join(f"{title} <{name}>" for title, name in pages)
        trees.append(f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n")
    source[0] = rewritten(source[0], (DOCS / page).parent, page) + "".join(trees)


def read_tree(app: Any, doctree: Any) -> None:
    """Take out HTML comments: they are for tests and for `generate.py`."""
    from docutils import nodes

    if app.env.docname == "errors":  # documents that are wrong on purpose; colours where they can be made out
        for node in doctree.findall(nodes.literal_block):
            node["force"] = True
    for node in [*doctree.findall(nodes.raw), *doctree.findall(nodes.comment)]:
        if isinstance(node, nodes.comment) or re.fullmatch(r"\s*(<!--.*?-->\s*)+", node.astext(), re.DOTALL):
            node.parent.remove(node)


def setup(app: Any) -> dict[str, bool]:
    """Connect what stands above."""
    from pygments.lexers import JsonLexer

    app.add_lexer("jsonl", JsonLexer)
    app.connect("source-read", read_source)
    app.connect("doctree-read", read_tree)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
