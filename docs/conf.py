"""Sphinx: lays out what is stored. DOCS_OFFLINE=1 leaves out links to the pages of torch, Pyro and ArviZ."""

import os
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import pyro_metricbnn

project = "pyro_metricbnn"
author = copyright = "The pyro_metricbnn developers"
version = release = pyro_metricbnn.__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "site"]

nb_execution_mode = "off"  # `python -m docs pages` runs the code and stores what it prints and draws
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
default_role = "py:obj"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

ONLINE = {
    "python": ("https://docs.python.org/3", None),
    "torch": ("https://docs.pytorch.org/docs/stable", None),
    "pyro": ("https://docs.pyro.ai/en/stable", None),
    "arviz": ("https://python.arviz.org/en/stable", None),
}
intersphinx_mapping = {} if os.environ.get("DOCS_OFFLINE") else ONLINE
intersphinx_timeout = 10

html_theme = "furo"
html_title = f"pyro_metricbnn {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0072B2", "color-brand-content": "#0072B2"},
    "dark_css_variables": {"color-brand-primary": "#56B4E9", "color-brand-content": "#56B4E9"},
}


def literally(app: Any, what: str, name: str, held: object, options: object, lines: list[str]) -> None:
    """Docstrings are plain text: stars of shapes, as in (*batch, D), and bars of absolute values mark nothing up."""
    lines[:] = [re.sub(r"\*(?=\w+ shape|batch)", r"\\*", line).replace("|", "\\|") for line in lines]


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect("autodoc-process-docstring", literally, priority=400)
