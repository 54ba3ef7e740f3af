"""`jaxprivrl plot` and `jaxprivrl list`."""

import json

from commands import check_refused, files

from jaxprivrl.environments import ENVIRONMENTS
from jaxprivrl.learners import LEARNERS
from jaxprivrl.privacy.privatizer import CALIBRATIONS
from jaxprivrl.privatizers import PRIVATIZERS
from jaxprivrl.schedules import SCHEDULES


def test_plot(run, swept, tmp_path):
    folder, _ = swept
    for name in ("regret.png", "figures/regret.pdf"):
        code, out, err = run("plot", folder, folder, "--out", name)
        assert code == 0 and err == "" and name in out and (tmp_path / name).stat().st_size > 2000


def test_bad_plots_write_nothing(run, swept, tmp_path):
    folder, _ = swept
    check_refused(run("plot", folder, "--out", "regret.doc"), "to end in .png, .pdf or .svg")
    check_refused(run("plot", tmp_path, "--out", "r.png"), "holds no results.nc", "jaxprivrl sweep --out")
    check_refused(run("plot", "--out", "r.png"), "at least one run folder")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "results.nc").write_text("not netCDF")
    check_refused(run("plot", "broken", "--out", "r.png"), "is not a results file", "Run the sweep again")
    (tmp_path / "taken.png").mkdir()
    check_refused(run("plot", folder, "--out", "taken.png"), "taken.png is a folder")
    assert files(tmp_path) == ["broken", "broken/results.nc", "taken.png"]


def test_list_names_all_registries_with_their_parameters(run):
    code, out, err = run("list", "--json")
    names = json.loads(out)
    assert code == 0 and err == ""
    assert set(names["learners"]) == set(LEARNERS) and set(names["privatizers"]) == set(PRIVATIZERS)
    assert set(names["environments"]) == set(ENVIRONMENTS) and set(names["schedules"]) == set(SCHEDULES)
    assert names["privatizers"]["central_laplace"]["guarantee"] == "JDP"
    assert names["privatizers"]["exact"]["guarantee"] == "none"
    assert {name: about["guarantee"] for name, about in names["privatizers"].items()} == {
        name: privatizer.trust for name, privatizer in PRIVATIZERS.items()
    }
    assert names["calibrations"] == ["tight", "printed", "published_code"] == list(CALIBRATIONS)
    described = ("environments", "schedules", "learners", "privatizers", "published_learners", "published_privatizers")
    assert all(about["description"] for kind in described for about in names[kind].values())
    assert all(names["postprocess"].values())
    for kind, registry in (("environments", ENVIRONMENTS), ("learners", LEARNERS), ("schedules", SCHEDULES)):
        for name, entry in registry.items():
            assert names[kind][name]["parameters"] == {p.name: p.meaning for p in entry.parameters}
    code, out, _ = run("list")
    assert code == 0 and all(name in out for name in (*LEARNERS, *PRIVATIZERS, *ENVIRONMENTS, *SCHEDULES))
    assert "[JDP]" in out and "num_states" in out and "learning_rate" in out
