"""The notebook under examples/ runs from top to bottom."""

import json
from pathlib import Path

NOTEBOOK = Path(__file__).parents[1] / "examples" / "first_steps.ipynb"


def test_the_cells_run_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    sources = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names = {"__name__": "__main__"}
    for number, source in enumerate(sources):
        exec(compile(source, f"cell {number}", "exec"), names)
    printed = capsys.readouterr().out
    assert "step 2: accuracy" in printed
    assert "V = " in printed
    assert names["result"].steps == 3
    assert names["entries"][0]["prompts"] == 4
    assert all(not cell.get("outputs") for cell in notebook["cells"]), "outputs are not committed"
