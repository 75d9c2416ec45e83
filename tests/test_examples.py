"""Each example runs as a user would run it, in its small setting, and writes its picture or its report."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_an_example_runs_and_writes_its_picture(example: str, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    command = [sys.executable, str(ROOT / "examples" / example), "--quick", "--out", str(picture)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert picture.stat().st_size > 10_000
    assert len((ROOT / "examples" / example).read_text().splitlines()) <= 80
