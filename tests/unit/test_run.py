"""A run's folder: what is in it when nothing was saved yet."""

from untail.config import load_recipe
from untail.run import Run


def test_a_run_without_a_checkpoint_begins_anew_and_says_so(tmp_path, capsys):
    folder, recipe = tmp_path / "run", load_recipe(None, {}, [])
    run = Run.begin(folder, recipe)
    run.metrics.write({"step": 1})
    run.close()
    resumed = Run.resume(folder, lambda tree: recipe)
    assert resumed.resumed_from is None
    assert resumed.sizes == {"events": 0, "metrics": 0}
    resumed.close()
    assert "was stopped before its first checkpoint: it begins anew" in capsys.readouterr().err
