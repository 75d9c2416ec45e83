"""Claims about the documents: sentences are short, links lead somewhere, tables are of their files, code runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.pages import DOCS, ROOT, guides, run

README = ROOT / "README.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
QUICK = ("several_machines",)  # pages whose code takes a few seconds at most
FENCED = re.compile(r"^(```+)(\{?[\w-]*\}?).*?^\1$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")


def without_code(text: str) -> str:
    return FENCED.sub("", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL))


def sentences(text: str) -> list[str]:
    """Of running text and of lists: tables, headings and code are left out, a link is its words."""
    lines = [line for line in without_code(text).splitlines() if not line.startswith(("|", "#", "<", ":"))]
    blocks = re.split(r"\n\s*\n|\n\s*[-*] ", "\n" + "\n".join(lines))
    flat = [re.sub(r"`[^`]*`", "code", LINK.sub("link", block)) for block in blocks]
    return [one for block in flat for one in re.split(r"(?<=[.?!:])\s+", " ".join(block.split())) if one]


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", without_code(path.read_text()), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    ("path", "most"), [(README, 30), *((page, 35) for page in guides())], ids=lambda one: getattr(one, "stem", one)
)
def test_no_sentence_is_long(path: Path, most: int) -> None:
    long = [one for one in sentences(path.read_text()) if len(one.split()) > most]
    assert not long


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_inside_lead_somewhere(path: Path) -> None:
    for target in LINK.findall(without_code(path.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        found = (path.parent / name).resolve() if name else path
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def test_a_guide_has_a_question_and_a_picture() -> None:
    for page in (DOCS / "guides").glob("*.md"):
        if page.stem != "index":
            assert re.search(r"^\*\*.+\?\*\*$", page.read_text(), flags=re.MULTILINE), page
            assert "../pictures/" in page.read_text(), page


def test_the_readme_is_short() -> None:
    text = re.sub(r"<!--.*?-->", "", README.read_text())
    assert len([word for word in text.split() if re.search(r"\w", word)]) <= 950


@pytest.mark.parametrize(
    "page", [pytest.param(one, id=one.stem, marks=() if one.stem in QUICK else pytest.mark.slow) for one in guides()]
)
def test_the_code_of_a_page_runs(page: Path) -> None:
    run(page)


@pytest.mark.parametrize("page", [README, *guides()], ids=lambda page: page.stem)
def test_what_is_typed_in_a_shell_is_what_a_shell_reads(page: Path) -> None:
    for _, language, code in re.findall(r"^(```)(\w+)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE):
        assert language in ("python", "text", "bash", "yaml"), f"{language} in {page.name}: no test reads it"
        if language == "bash":
            subprocess.run(["bash", "-n"], input=code, text=True, check=True)


@pytest.mark.slow
def test_the_script_of_several_machines_runs_under_torchrun(tmp_path: Path) -> None:
    page = (DOCS / "guides" / "several_machines.md").read_text()
    (tmp_path / "script.py").write_text("\n".join(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)))
    command = next(line for line in re.findall(r"```bash\n(.*?)```", page, flags=re.DOTALL)).split()
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command[1:]], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("MetricBNN(20 walks of 50 points") == 1
