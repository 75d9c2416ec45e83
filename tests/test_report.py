"""Claims about the report: one file that needs nothing else, says what it shows, and trusts no name."""

import base64
import io
import os
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch
from torch import Tensor, nn

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from pyro_metricbnn import Categorical, DriftRefineKernel, Gaussian, MetricBNN, bayesianize, compare
from pyro_metricbnn.comparison.comparison import Comparison
from pyro_metricbnn.comparison.pictures import MAX_COORDINATES

from .runs import GROUPS, X, Y, hierarchical
from .test_comparison import group_draws, noisy

WICKED = "<script>alert('$x_1')</script> & \"_quoted\""
ALONE = {"meta", "img", "br", "link", "input", "hr"}  # elements without an end


class Reader(HTMLParser):
    """Elements with their attributes, all text, and whether every element is closed where it should be."""

    def __init__(self, document: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ALONE:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def linear_draws(num_inputs: int, num_outputs: int, num_draws: int = 30) -> dict[str, Tensor]:
    return {"weight": torch.randn(num_draws, num_outputs, num_inputs), "bias": torch.randn(num_draws, num_outputs)}


def regression_report(run: MetricBNN) -> Comparison:
    posteriors = {"run": run, WICKED: noisy(run), "one draw": noisy(run, 1)}
    return compare(run.model, posteriors, X, Y, reference=WICKED, num_samples=60)


def classifier_report(_: MetricBNN) -> Comparison:
    model = bayesianize(nn.Linear(2, 3), Categorical())
    x, y = torch.randn(30, 2), torch.arange(30) % 3
    posteriors = {WICKED: linear_draws(2, 3), "_b": linear_draws(2, 3)}
    return compare(model, posteriors, x, y, x_test=x, y_test=y, reference="_b")


def hierarchical_report(_: MetricBNN | None = None) -> Comparison:
    return compare(hierarchical, {WICKED: group_draws(), "_b": group_draws(seed=1)}, GROUPS, reference="_b")


REPORTS: dict[str, Callable[[MetricBNN], Comparison]] = {
    "Predictions, Coverage, Walks": regression_report,
    "Decisions, Reliability": classifier_report,
    "Marginals": hierarchical_report,
}


@pytest.fixture(scope="module", params=REPORTS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def result(kind: str, metric: MetricBNN) -> Comparison:
    torch.manual_seed(0)
    return REPORTS[kind](metric)


@pytest.fixture
def document(result: Comparison, tmp_path: Path) -> Reader:
    result.save_report(tmp_path / "report.html")
    return Reader((tmp_path / "report.html").read_text(encoding="utf-8"))


def test_every_element_is_closed(document: Reader) -> None:
    assert document.open == []
    assert [name for name, _ in document.elements[:2]] == ["html", "head"]


def test_the_page_asks_for_nothing_from_elsewhere(document: Reader) -> None:
    resources = [attributes[key] for _, attributes in document.elements for key in ("src", "href") if key in attributes]
    assert all((address or "").startswith("data:image/png;base64,") for address in resources)
    assert not document.all("script")
    assert not document.all("link")
    assert not re.search(r"https?:|url\(|@import", "".join(document.texts))


def test_every_picture_is_a_png_that_decodes_and_says_what_it_shows(document: Reader, result: Comparison) -> None:
    images = document.all("img")
    assert len(images) == sum(len(section.pictures) for section in result.sections) > 0
    for image in images:
        pixels = plt.imread(
            io.BytesIO(base64.b64decode((image["src"] or "").split(",")[1], validate=True)), format="png"
        )
        assert min(pixels.shape[:2]) > 100
        assert len(image["alt"] or "") > 20


def test_what_the_user_named_is_text_and_no_markup(document: Reader) -> None:
    assert any(WICKED in text for text in document.texts)
    assert not document.all("script")


def test_every_figure_of_the_table_is_on_the_page_with_its_meaning(document: Reader, result: Comparison) -> None:
    said = " ".join(document.texts)
    for score in result.scores:
        assert score.column.error is not None or score.column.meaning in said or score.column.key.endswith("_se")
        assert all(score.text(name) in said for name in result.posteriors if score.column.key[-3:] != "_se")


def test_the_best_is_marked_by_more_than_a_colour(document: Reader, result: Comparison) -> None:
    beside = {one.column.error for one in result.scores}
    expected = sum(len(one.best) for one in result.scores if one.column.key not in beside)
    assert sum("★" in text for text in document.texts) == expected + 1  # and in the sentence that says so
    assert sum(cell.get("class") == "best" for cell in document.all("td")) == expected


def test_the_page_fits_a_telephone_and_both_schemes_of_colours(document: Reader) -> None:
    metas = {meta.get("name"): meta.get("content") for meta in document.all("meta")}
    assert metas["viewport"] == "width=device-width, initial-scale=1"
    assert metas["color-scheme"] == "light dark"


def test_the_title_and_the_heading_say_how_many_posteriors_of_what(document: Reader, kind: str) -> None:
    titles = {
        "Predictions, Coverage, Walks": "3 posteriors of the network Sequential",
        "Decisions, Reliability": "2 posteriors of the network Linear",
        "Marginals": "2 posteriors of the function hierarchical",
    }
    assert document.texts.count(titles[kind]) == 2


def test_every_table_scrolls_in_a_box_of_its_own(result: Comparison) -> None:
    html = result._repr_html_()
    assert html.count("<table") == html.count('<div class="scroll"><table') == 2


def test_long_names_and_likelihoods_are_cut() -> None:
    net = type("Net" * 40, (nn.Linear,), {})(1, 200)
    model = bayesianize(net, Gaussian(torch.linspace(0.1, 1.0, 200)))
    draws = linear_draws(1, 200)
    result = compare(model, {"a": draws}, torch.randn(8, 1), torch.randn(8, 200), pictures=False)
    assert result.title.startswith("1 posterior of the network NetNet")
    assert len(result.title) < 80
    assert len(result.facts["likelihood"]) < 90


def test_the_warnings_are_on_the_page(document: Reader, result: Comparison) -> None:
    said = " ".join(document.texts)
    assert all(text in said for texts in result.warnings.values() for text in texts)


def test_a_notebook_shows_the_same_without_a_document_around_it(result: Comparison) -> None:
    reader = Reader(result._repr_html_())
    assert reader.open == []
    assert not {"html", "head", "body"} & {name for name, _ in reader.elements}


def test_each_kind_of_model_has_its_pictures(kind: str, result: Comparison) -> None:
    assert ", ".join(section.title for section in result.sections) == kind


def test_panels_of_one_kind_are_of_one_size(result: Comparison) -> None:
    for section in result.sections[:1]:
        shapes = {plt.imread(io.BytesIO(picture.png), format="png").shape for picture in section.pictures}
        assert len(shapes) == 1


def test_pictures_leave_the_style_and_pyplots_figures_alone(tmp_path: Path) -> None:
    style, backend = dict(matplotlib.rcParams), matplotlib.get_backend()
    figures = plt.get_fignums()
    hierarchical_report()
    assert dict(matplotlib.rcParams) == style
    assert (matplotlib.get_backend(), plt.get_fignums()) == (backend, figures)


def test_a_large_model_shows_some_marginals_of_each_site() -> None:
    draws = {
        "mean": torch.randn(30),
        "spread": torch.rand(30),
        "share": torch.rand(30, 3),
        "effect": torch.randn(30, 50),
    }
    sections = compare(hierarchical, {"a": draws}, torch.zeros(50)).sections
    captions = [picture.caption for picture in sections[0].pictures]
    assert len(captions) == MAX_COORDINATES
    assert captions[:5] == ["mean", "spread", "share[0]", "share[1]", "share[2]"]


def test_a_walk_of_one_coordinate_has_its_energy_and_no_plane() -> None:
    class Slope(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return self.slope * x

    model = bayesianize(Slope(), Gaussian(0.5))
    walk = DriftRefineKernel(model, num_steps=8).walk(X, X, num_particles=3, progress=False)
    sections = compare(model, [walk], X, X).sections
    assert [picture.caption for picture in sections[-1].pictures] == ["walk: energy"]


# ----------------------------------------------------------------------------------------- the file


@pytest.fixture(scope="module")
def plain() -> Comparison:
    return compare(hierarchical, {"a": group_draws()}, GROUPS, pictures=False)


def test_a_report_replaces_the_file_that_was_there(plain: Comparison, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("old")
    plain.save_report(str(file))
    assert file.read_text().startswith("<!DOCTYPE html>")


def test_a_save_that_is_interrupted_leaves_the_old_report_whole(
    plain: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    (tmp_path / "report.html").write_text("old")
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        plain.save_report(tmp_path / "report.html")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"report.html": "old"}


def test_a_folder_is_no_place_for_a_report(plain: Comparison, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a folder: name a file in it"):
        plain.save_report(tmp_path)


def test_a_folder_that_is_missing_is_named(plain: Comparison, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="make it first"):
        plain.save_report(tmp_path / "missing" / "report.html")


def test_a_report_without_pictures_says_all_the_rest(plain: Comparison) -> None:
    reader = Reader(plain._repr_html_())
    assert not reader.all("img")
    assert "Leave-one-out" in reader.texts


def test_a_run_of_a_network_is_judged_by_functions_and_not_by_weights(metric: MetricBNN) -> None:
    result = compare(metric.model, {"run": metric}, X, Y, num_samples=50, pictures=False)
    assert not any("look at function_mixing" in text for text in result.warnings["run"])
