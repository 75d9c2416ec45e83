"""Claims about figures in the documents: they are those of the result files, and say which walk made them."""

import re
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.arguments import RESULTS
from benchmarks.older import SINCE, note, section, versions
from benchmarks.publish import MARKED, ROOT, documents, marked, published
from benchmarks.published import TABLES
from benchmarks.results import Results
from pyro_metricbnn.walk import VERSION

NUMBER = re.compile(r"\d*\.\d+")
BY_HAND = ("methods.md",)  # what methods were tuned over


@pytest.mark.parametrize("path", list(documents()), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_tables_of_a_document_are_what_the_result_files_say(path: Path) -> None:
    assert path.read_text() == published(path.read_text(), RESULTS), "python -m benchmarks publish writes them anew"


@pytest.mark.parametrize("path", list(documents()), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_table_of_figures_is_written_by_hand(path: Path) -> None:
    text = re.sub(r"`[^`]*`", "", MARKED.sub("", path.read_text()))
    rows = [line for line in text.splitlines() if line.startswith("|") and len(NUMBER.findall(line)) > 1]
    assert path.name in BY_HAND or not rows


def test_every_table_of_ours_says_which_walk_made_it() -> None:
    for name in TABLES:
        assert "ersion" in marked(name, RESULTS), name


def test_no_figure_is_of_a_walk_that_the_code_no_longer_has() -> None:
    assert "No cell is of a walk that it no longer has." in section(RESULTS), "run these experiments anew"


def test_a_cell_carries_the_version_of_its_walk(tmp_path: Path) -> None:
    cell = Results(tmp_path / "made" / "set.json", {}).cell("MetricBNN|0", lambda: {"nll": 1.0})
    assert cell["walk_version"] == VERSION
    assert versions(tmp_path) == {("made", "MetricBNN"): Counter({VERSION: 1})}


def test_a_cell_of_an_earlier_walk_is_said(tmp_path: Path) -> None:
    path = tmp_path / "unknown_noise" / "unknown_noise.json"
    path.parent.mkdir()
    path.write_text('{"cells": {"MetricBNN|0": {"nll": 1.0}, "MAP|0": {"nll": 2.0}}}')
    assert versions(tmp_path) == {("unknown_noise", "MetricBNN"): Counter({1: 1})}
    assert "| unknown_noise | MetricBNN | 1 | 1 |" in section(tmp_path)
    assert note(tmp_path, ["*/*.json"]) == "*Walk version 1; of a walk that the code no longer has.*"


def test_what_no_version_has_changed_since_is_not_earlier(tmp_path: Path) -> None:
    path = tmp_path / "uci" / "glass.json"
    path.parent.mkdir()
    path.write_text('{"cells": {"MetricBNN|0": {"nll": 1.0}}}')
    assert note(tmp_path, ["*/*.json"]) == "*Walk version 1.*"
    assert "No cell is of a walk that it no longer has." in section(tmp_path)


def test_an_experiment_cannot_need_a_version_that_there_is_not() -> None:
    assert max(SINCE.values()) == VERSION


def test_a_table_that_an_experiment_wrote_is_quoted_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "made.json").write_text('{"cells": {"set|MetricBNN|0": {"nll": 1.0}}}')
    (tmp_path / "made" / "made.md").write_text("| a |\n|---|\n| 1.5 |\n")
    text = published("<!-- table: made/made.md -->\n<!-- end -->", tmp_path)
    assert "| 1.5 |" in text
    assert "*Walk version 1.*" in text


def test_a_table_of_others_alone_names_no_walk(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "set.json").write_text('{"cells": {"MAP|0": {"nll": 2.0}}}')
    assert note(tmp_path, ["made/set.json"]) == ""
