"""Answers that a newcomer could misread: what is judged, what a word means, whose curve it is, what was learned."""

import dataclasses
import json
import math
import sys

import numpy as np
import pytest
from commands import SMALL, check_refused, files

from jaxprivrl import environments
from jaxprivrl import mdp as mdp_lib
from jaxprivrl.__main__ import main
from jaxprivrl.audit.audit import MEANINGS, AuditResult
from jaxprivrl.environments import summary
from jaxprivrl.experiments import compare, plots, progress, reproduce, results, tables
from jaxprivrl.experiments.spec import SweepSpec
from jaxprivrl.privatizers import PRIVATIZERS


@pytest.fixture
def legends(monkeypatch):
    """What `plot` would write: {title of a panel: labels of its legend}, in order."""
    drawn = []

    def keep(figure, *paths):
        for axes in figure.axes:
            if axes.get_visible():
                drawn.append((axes.get_title(), [text.get_text() for text in axes.get_legend().get_texts()]))
        written(figure, *paths)

    written = plots.save
    monkeypatch.setattr(plots, "save", keep)
    return drawn


# -- the claim asked about, and the words of a table -----------------------------------------------


def column(out, name):
    """{first word of a line: the rest from where the column begins} of a printed table."""
    head, _, *lines = out.split("\n")
    return {line.split()[0]: line[head.index(name) :].strip() for line in lines if line[:1].strip()}


def test_the_claim_asked_about_is_the_claim_judged(run):
    """Exact counts keep no epsilon: asked about epsilon 1, the answer is no, by exit code and in words."""
    audit = ("audit", "--privatizer", "exact", "--epsilon", 1, "--samples", 2000)
    code, out, _ = run(*audit, "--json")
    facts = json.loads(out)
    assert code == 1 and facts["epsilon_claimed"] == 1.0 and facts["verdict"] == "violated"
    code, out, _ = run(*audit)
    assert code == 1 and column(out, "value")["verdict"].startswith("violated")


def test_an_audit_explains_its_words_where_it_prints_them(run):
    _, out, _ = run("audit", "--privatizer", "local_laplace", "--epsilon", 1, "--samples", 2000)
    meanings = column(out, "meaning")
    assert set(meanings) == {f.name for f in dataclasses.fields(AuditResult)} == set(MEANINGS)
    assert all(meanings.values()), "every word is explained"
    for word, said in (("power_bound", "twice the claim"), ("position", "user"), ("score", "likelihood ratio")):
        assert said in meanings[word]
    assert max(map(len, out.split("\n"))) <= 120


@pytest.mark.parametrize("name", PRIVATIZERS)
def test_an_account_prints_numbers_with_their_meaning(run, name):
    account = ("account", "--privatizer", name, "--epsilon", 1, "--dp-delta", 1e-7, "--horizon", 2, "--episodes", 16)
    code, out, _ = run(*account)
    assert code == 0 and "{" not in out
    table = out[: out.rindex("\n", 0, -1)]  # without the sentence below it
    facts = json.loads(run(*account, "--json")[1])
    meanings, values = column(table, "meaning"), column(table, "value")
    assert set(meanings) == set(facts) - {"statement"} and all(meanings.values())
    assert "delta=1e-07" in meanings["epsilon_at_delta"]
    assert float(values["epsilon_at_delta"].split()[0]) == pytest.approx(
        float(facts["epsilon_at_delta"]["1e-07"]), rel=1e-3
    )


def test_no_cell_of_a_table_is_written_as_python_would():
    for value in ({"1e-05": 0.07020980557217626}, [1.0, 2.5], (math.inf,), {"a": {"b": None}}, [[True]]):
        assert not set("{}[]()'") & set(tables.cell(value)), value
    assert tables.cell({"1e-05": 0.07020980557217626}) == "1e-05: 0.07021" and tables.cell([1.0, 2.5]) == "1, 2.5"


# -- whose curve it is -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unlike(tmp_path_factory):
    """Run folders of one MDP that differ in everything a legend may have to name, and one of another MDP."""
    folder = tmp_path_factory.mktemp("unlike")
    costs = np.linspace(0, 1, 4).reshape(1, 2, 2)
    rows = np.random.default_rng(0).dirichlet(np.ones(2), (1, 2, 2))
    np.savez(folder / "one.npz", costs=costs, transitions=rows, initial=0, horizon=2)
    np.savez(folder / "other.npz", costs=1 - costs, transitions=rows, initial=0, horizon=2)
    sweep = ("sweep", "--epsilons", "50", *SMALL)
    one, other = (("--mdp", str(folder / f"{name}.npz")) for name in ("one", "other"))
    flags = {
        "plain": one,
        "bonus": (*one, "--bonus-scales", "0.01"),
        "longer": (*one, "--episodes", "40"),
        "pooled": (*one, "--homogeneous"),
        "printed": (*one, "--calibration", "printed"),
        "released": (*one, "--releases", "equal:4", "--postprocess", "clip"),
        "elsewhere": other,
    }
    for name, words in flags.items():
        assert main([*sweep, *words, "--out", str(folder / name)]) == 0
    return {name: folder / name for name in flags}


def test_a_legend_names_what_differs_between_runs(run, unlike, legends):
    same = [folder for name, folder in unlike.items() if name != "elsewhere"]
    code, _, err = run("plot", *same, "--out", "r.png")
    ((title, labels),) = legends
    labels = [" ".join(label.split()) for label in labels]
    assert code == 0 and err == "" and title == "" and len(set(labels)) == len(same)
    plain, bonus, longer, pooled, printed, released = labels
    assert all(label.startswith("ucb_vi, central_laplace: ") for label in labels)
    assert "bonus × 1," in plain and "K = 20" in plain and "by step" in plain and "releases every" in plain
    assert "bonus × 0.01" in bonus and "K = 40" in longer and "pooled" in pooled
    assert "calibration printed" in printed and "holds: ε=" in printed
    assert "releases equal:4" in released and "postprocess clip" in released
    assert not any("families" in label or "seeds" in label for label in labels), "what is the same is not said"
    legends.clear()
    assert run("plot", unlike["plain"], unlike["bonus"], "--out", "r.png")[0] == 0
    who = "ucb_vi, central_laplace: ε=50 (JDP)"
    assert legends == [("", [f"{who}, bonus × 1", f"{who}, bonus × 0.01"])]


def test_no_two_curves_have_one_name_even_if_the_runs_are_the_same(run, unlike, legends):
    assert run("plot", unlike["plain"], unlike["plain"], unlike["plain"], "--out", "r.png")[0] == 0
    ((_, labels),) = legends
    assert len(set(labels)) == 3 and all("ε=50" in label for label in labels)


def test_figures_of_compare_and_reproduce_name_every_curve_too(legends):
    """Epsilons that are written alike have curves of their own."""
    values = np.arange(6.0).reshape(2, 3)
    entries = [compare.Entry("a", "b", e, "ε=1 (JDP)", np.arange(3), values) for e in (1.0, 1.00001)]
    compare.figure(entries)
    curves = [reproduce.Curve("PO", "JDP", e, "ε=1 (JDP)", np.arange(3), values) for e in (1.0, 1.00001)]
    reproduce.figure({"paper": [*curves, *(c._replace(panel="VI") for c in curves)]})
    assert len(legends) == 3 and all(len(set(labels)) == 2 for _, labels in legends)
    assert all("2 seeds" in title for title, _ in legends[1:])


def test_every_field_of_a_spec_that_changes_a_curve_is_named(unlike):
    """Also fields that are added later: all but those listed as said elsewhere."""
    data = results.load(unlike["plain"])
    for field in dataclasses.fields(SweepSpec):
        if field.name in plots._NOT_TOLD and field.name != "seed_start":
            continue
        old = data.attrs["spec"][field.name]
        new = {bool: not old, int: 7}.get(type(old), "special")
        other = data.copy()
        other.attrs = data.attrs | {"spec": data.attrs["spec"] | {field.name: new}}
        axes = plots.regret([data, other])
        first, second = (text.get_text() for text in axes.get_legend().get_texts())
        assert first != second and "(1)" not in first, field.name
        plots.save(axes.figure)


def test_close_numbers_get_the_digits_that_tell_them_apart():
    near = [0.1234, 0.12341, 0.5]
    assert plots._texts("bonus_scale", near) == ["bonus × 0.1234", "bonus × 0.12341", "bonus × 0.5"]
    assert plots.distinct(["a", "b", "a", "a (1)"]) == ["a (1) (1)", "b", "a (2)", "a (1) (2)"]


def test_runs_of_different_mdps_stand_in_panels_of_their_own(run, unlike, legends):
    folders = [unlike["plain"], unlike["elsewhere"], unlike["bonus"]]
    code, _, err = run("plot", *folders, "--out", "r.png")
    assert code == 0 and err == "" and len(legends) == 2
    (first, many), (second, one) = legends
    assert first.endswith("one.npz") and second.endswith("other.npz")
    assert len(many) == 2 and len(one) == 1
    axes = plots.regret([results.load(folder) for folder in folders])
    top = [max(panel.get_lines()[0].get_ydata()) for panel in axes.figure.axes]
    for value, folder in zip(top, folders[:2], strict=True):
        assert value == pytest.approx(float(results.load(folder).regret.mean("seed").max()))
    with pytest.raises(ValueError, match=r"of 2 MDPs, expected one"):
        plots.regret([results.load(folder) for folder in folders], axes)
    plots.save(axes.figure)


def test_mdps_of_one_name_have_titles_of_their_own(unlike):
    data = results.load(unlike["plain"])
    other = data.copy()
    other.attrs = data.attrs | {"spec": data.attrs["spec"] | {"mdp_hash": "another"}}
    axes = plots.regret([data, other])
    titles = [panel.get_title() for panel in axes.figure.axes]
    assert len(set(titles)) == 2 and all("one.npz" in title for title in titles)
    plots.save(axes.figure)


def test_too_many_mdps_for_one_figure_are_refused(run, unlike, tmp_path):
    data = results.load(unlike["plain"])
    for i in range(7):
        data.attrs["spec"] = data.attrs["spec"] | {"mdp_hash": f"{i}", "environment": f"file:{i}.npz"}
        results.save(data, tmp_path / f"r{i}")
    before = files(tmp_path)
    answer = run("plot", *(f"r{i}" for i in range(7)), "--out", "r.png")
    check_refused(answer, "of 7 MDPs, expected at most 6", "Plot fewer at once")
    assert files(tmp_path) == before
    assert run("plot", *(f"r{i}" for i in range(6)), "--out", "r.png")[0] == 0


# -- what was learned ------------------------------------------------------------------------------


def test_a_summary_has_the_uniform_policy_and_the_best_beside_it(run, unlike):
    facts = summary.facts(environments.make(f"file:{unlike['plain'].parent / 'one.npz'}"))
    command = ("sweep", "--mdp", unlike["plain"].parent / "one.npz", "--epsilons", 50, *SMALL)
    code, out, _ = run(*command, "--json")
    (row,) = json.loads(out)["summary"]
    assert code == 0 and row["uniform_regret"] == pytest.approx(20 * facts["uniform_regret"], rel=1e-6)
    assert row["best_regret"] == 0.0 and "better than uniform" in row["verdict"]
    assert row["share_of_uniform"] == pytest.approx(row["final_regret_mean"] / row["uniform_regret"])
    code, out, _ = run(*command)
    assert f"the uniform policy has regret {tables.cell(row['uniform_regret'])} and the best policy 0" in out
    assert "share_of_uniform" in out
    compared = ("compare", *command[1:], "--learners", "ucb_vi", "--privatizers", "exact", "central_laplace")
    _, out, _ = run(*compared, "--json")
    for entry in json.loads(out)["ranking"]:
        assert entry["uniform_regret"] == row["uniform_regret"] and entry["best_regret"] == 0.0
        assert entry["share_of_uniform"] == pytest.approx(entry["final_regret_mean"] / row["uniform_regret"])
    _, out, _ = run(*compared)
    assert "uniform policy has regret" in out and "share_of_uniform" in out


def test_a_sweep_that_learned_nothing_says_so(run):
    """The defaults at epsilon 1: a regret of 67,069 in 20,000 episodes says nothing by itself."""
    code, out, _ = run("sweep", "--epsilons", 1, *SMALL)
    assert code == 0 and "No better than uniform: the mean final regret is above 95 %" in out
    (row,) = json.loads(run("sweep", "--epsilons", 1, *SMALL, "--json")[1])["summary"]
    assert row["verdict"] == "no better than uniform" and row["share_of_uniform"] == pytest.approx(1, abs=0.05)


def test_a_learner_that_learns_is_not_called_no_better_than_uniform(run, unlike):
    command = ("sweep", "--mdp", unlike["plain"].parent / "one.npz", "--privatizer", "exact", "--seeds", 4)
    code, out, _ = run(*command, "--episodes", 1000, "--bonus-scales", 0.01)
    assert code == 0 and "better than uniform" in out and "no better" not in out.lower()


def test_a_learner_without_step_size_has_no_column_for_one(run, unlike):
    command = ("sweep", "--mdp", unlike["plain"].parent / "one.npz", *SMALL, "--epsilons", 50)
    assert "learning_rate" not in run(*command)[1] and "learning_rate" not in run(*command, "--json")[1]
    assert "learning_rate" in run(*command, "--learner", "ucb_po")[1]


@pytest.mark.parametrize(
    ("final", "better"),
    [
        ([50.0, 60.0], True),
        ([96.0, 96.0], False),  # above 95 %
        ([94.0, 94.0], True),
        ([90.0, 70.0, 110.0, 80.0], False),  # mean 87.5 with a standard error of 8.5
        ([94.0], True),  # nothing is known of the spread of one seed
        ([96.0], False),
        ([130.0, 140.0], False),
    ],
)
def test_better_than_uniform_means_clearly_below(final, better):
    found = results.against_uniform(np.array(final), 100.0)
    assert found["verdict"] == ("better than uniform" if better else "no better than uniform")
    assert found["share_of_uniform"] == pytest.approx(np.mean(final) / 100)


def test_where_every_policy_is_best_there_is_no_share_of_uniform():
    found = results.against_uniform(np.zeros(3), 0.0)
    assert found["share_of_uniform"] is None and found["verdict"] == "no better than uniform"


@pytest.mark.parametrize("name", ["river_swim", "deep_sea:size=5", "random:seed=3"])
def test_the_uniform_regret_is_that_of_its_values(name):
    mdp = environments.make(name, None).mdp
    H, S, A = mdp.shape
    uniform = np.full((H, S, A), 1 / A, np.float32)
    by_gaps = float(mdp_lib.expected_regret(mdp, mdp_lib.prepare(mdp).gaps, uniform))
    by_values = float(
        np.asarray(mdp.initial) @ (np.asarray(mdp_lib.policy_value(mdp, uniform)) - mdp_lib.solve(mdp).v)[0]
    )
    assert mdp_lib.uniform_regret(mdp) == pytest.approx(by_gaps, rel=1e-4) == pytest.approx(by_values, rel=1e-4)
    if name == "river_swim":
        assert 20_000 * mdp_lib.uniform_regret(mdp) == pytest.approx(67_069, abs=10)


def test_runs_saved_without_the_uniform_policy_still_load(run, unlike, tmp_path):
    data = results.load(unlike["plain"])
    assert data.attrs[results.UNIFORM] > 0, "saved runs have it"
    assert json.loads((unlike["plain"] / "run.json").read_text())["summary"][0]["uniform_regret"] > 0
    del data.attrs[results.UNIFORM]
    old = results.load(results.save(data, tmp_path / "old"))
    (row,) = results.summarize(old)
    assert row["uniform_regret"] is None and row["verdict"] is None and row["final_regret_mean"] > 0
    assert results.beside_uniform([row], 20) == []
    assert run("plot", "old", "--out", "r.png")[0] == 0


# -- the claims of the paper -----------------------------------------------------------------------

EPISODES = np.array([10_000, 18_000, 20_000])


def curve(panel, model, epsilon, final, noise, seeds, late=0.5, seed=0):
    """A made-up curve; `late` is the share of its regret in the second half of the episodes."""
    key = (seed, sorted(reproduce.PANELS).index(panel), len(model), ord(model[0]), round(100 * min(epsilon, 1e6)))
    finals = final + noise * np.random.default_rng(key).normal(size=seeds)
    shares = np.array([1 - late, 1 - 0.2 * late, 1.0])
    return reproduce.Curve(panel, model, epsilon, f"{model} {epsilon}", EPISODES, finals[:, None] * shares)


def figure(means, noise, seeds, lates=(0.1, 0.5), seed=0):
    """All curves of a variant with means {(model, epsilon): final regret} in both panels."""
    late = dict(zip(("JDP", "LDP"), lates, strict=True)) | {"none": 0.1}
    return [curve(p, m, e, x, noise, seeds, late[m], seed) for p in reproduce.PANELS for (m, e), x in means.items()]


CLEAR = {
    ("none", math.inf): 100.0,
    ("JDP", 0.5): 2000.0,
    ("JDP", 1.0): 1000.0,
    ("LDP", 0.5): 9000.0,
    ("LDP", 1.0): 5000.0,
}
REVERSED = {
    ("none", math.inf): 9000.0,
    ("JDP", 0.5): 1000.0,
    ("JDP", 1.0): 2000.0,
    ("LDP", 0.5): 100.0,
    ("LDP", 1.0): 500.0,
}
ALIKE = {key: 1000.0 for key in CLEAR}


@pytest.mark.parametrize(
    ("means", "verdict", "supported"), [(CLEAR, "true", True), (REVERSED, "false", False), (ALIKE, "cannot tell", None)]
)
def test_claims_that_are_clear_reversed_or_cannot_be_told(means, verdict, supported):
    rows = reproduce.claims(figure(means, 5.0, 20))
    assert len(rows) == 12
    for row in rows:
        assert (row["verdict"], row["supported"], row["seeds"]) == (verdict, supported, 20), row
        assert (row["p"] <= 0.05) == (verdict != "cannot tell")
    (flat,) = {row["verdict"] for row in reproduce.claims(figure(CLEAR, 5.0, 20, (0.6, 0.5))) if row["claim"][0] == "3"}
    assert flat == "false", "JDP grows on"


def test_bare_means_decide_nothing():
    """A difference below the spread of four seeds was once called true."""
    means = CLEAR | {("JDP", 0.5): 1_342_849.0, ("LDP", 0.5): 1_345_191.0}
    row = next(r for r in reproduce.claims(figure(means, 3000.0, 4)) if "target ε=0.5" in r["claim"])
    assert row["verdict"] == "cannot tell" and row["supported"] is None and row["seeds"] == 4


def test_the_honest_variant_has_seeds_enough_to_be_judged():
    honest = [spec for _, _, spec in reproduce.specs("honest", 20, 20_000)]
    means = {("none", math.inf): 10.0} | {
        (m, e): base / e for m, base in (("JDP", 1e5), ("LDP", 1e6)) for e in reproduce.HONEST_EPSILONS
    }
    clear = reproduce.claims(figure(means, 1e-3, honest[0].seeds))
    unclear = reproduce.claims(figure({k: -x for k, x in means.items()}, 1e-3, honest[0].seeds))
    assert len(clear) == 24 and {row["verdict"] for row in clear} == {"true"}
    assert {row["verdict"] for row in unclear if row["claim"][0] in "12"} == {"false"}


def test_wrong_answers_are_as_rare_as_the_level_says():
    """Where all curves have one law, any answer but "cannot tell" is wrong: at most 5 % of figures hold one.

    Of 100 figures 5 are expected at most; 13 or more would be seen with a probability of 0.002.
    """
    wrong = sum(
        any(row["verdict"] != "cannot tell" for row in reproduce.claims(figure(ALIKE, 50.0, 12, (0.1, 0.5), seed)))
        for seed in range(100)
    )
    assert wrong < 13


def test_claims_do_not_depend_on_the_order_of_the_curves():
    curves = figure(CLEAR, 500.0, 12)
    assert reproduce.claims(curves) == reproduce.claims(curves[::-1])
    claims = [(row["panel"], row["claim"]) for row in reproduce.claims(curves)]
    assert claims == sorted(claims, key=lambda c: (c[0], c[1][0])), "by panel, then by claim"


def test_the_side_of_a_paired_difference_is_that_of_its_ranks():
    x = np.arange(6.0)
    assert (compare.direction(x, x + 1), compare.direction(x + 1, x), compare.direction(x, x)) == (1, -1, 0)
    outlier = x + np.array([1.0, 1, 1, 1, 1, -100])
    assert compare.direction(x, outlier) == 1, "one outlier does not turn five others"


# -- half a screen, and a quiet log ----------------------------------------------------------------


@pytest.fixture
def made_up(monkeypatch):
    """`reproduce` without its hours of runs: clear, reversed and equal curves."""
    means = {"code": CLEAR, "paper": REVERSED, "honest": ALIKE}

    def play(variant, seeds, episodes):
        return [c._replace(uniform=1500.0) for c in figure(means[variant], 5.0, seeds)], []

    monkeypatch.setattr(reproduce, "run", play)


def test_reproduce_prints_half_a_screen_and_names_the_rest(run, made_up, tmp_path, monkeypatch):
    code, out, err = run("reproduce", "--variant", "honest", "code", "paper", "--seeds", 12, "--out", "fig")
    lines = out.rstrip("\n").split("\n")
    assert code == 0 and err == "" and len(lines) <= 24 and max(map(len, lines)) <= 120
    started = [line.split()[0] for line in lines[1:4]]
    assert started == ["code", "paper", "honest"], "what was run, in one order, whatever was typed"
    assert all("12 seeds" in line and "20,000 episodes" in line for line in lines[1:4])
    counted = {
        tuple(line.split()[:2]): line.split()[-3:] for line in lines if line[:6].strip() in ("code", "paper", "honest")
    }
    assert counted[("code", "1:")] == ["4", "0", "0"] and counted[("paper", "2:")] == ["0", "4", "0"]
    assert counted[("honest", "3:")] == ["0", "0", "4"]
    assert "No better than uniform: 10 of 30 curves" in " ".join(lines)
    for name in ("claims.md", "table.md", "guarantees.md", "code.png", "combined.png"):
        assert name in out and name in files("fig")
    table = (tmp_path / "fig" / "table.md").read_text()
    assert table.count("\n") == 32 and all(w in table for w in ("seeds", "uniform_regret", "no better than uniform"))
    claims = (tmp_path / "fig" / "claims.md").read_text()
    assert claims.count("\n") == 38 and all(w in claims for w in ("cannot tell", "seeds", "non-private < JDP < LDP"))
    monkeypatch.setattr(reproduce, "figure", lambda *_: None)
    again = run("reproduce", "--seeds", 12, "--out", "fig", "--json")[1]
    assert json.loads(again)["summary"][0] == {
        "variant": "code", "claim": "1: non-private < JDP < LDP", "true": 4, "false": 0, "cannot tell": 0}  # fmt: skip
    assert len(json.loads(again)["table"]) == 30 and len(json.loads(again)["claims"]) == 36
    assert (tmp_path / "fig" / "claims.md").read_text() == claims, "whatever the order of --variant"


def test_too_few_seeds_to_tell_anything_are_said_to_be(run, made_up, monkeypatch):
    monkeypatch.setattr(reproduce, "figure", lambda *_: None)
    _, out, _ = run("reproduce", "--variant", "code", "--seeds", 4, "--out", "fig")
    assert "So few seeds can tell nothing" in out and "Pass --seeds 9 or more" in out
    _, out, _ = run("reproduce", "--variant", "code", "--seeds", 9, "--out", "fig")
    assert "So few seeds" not in out and "4      0            0" in out


@pytest.fixture
def clock(monkeypatch):
    """The time in seconds, to be set; no line has been written yet."""
    now = [1000.0]
    monkeypatch.setattr(progress, "clock", lambda: now[0])
    monkeypatch.setattr(progress, "_last_line", [])
    return now


def test_what_is_no_terminal_gets_at_most_a_line_per_minute(capsys, clock):
    """Twenty sweeps of 100 chunks and half a minute each; the minute runs on from one to the next."""
    for sweep in range(20):
        update = progress.progress_bar(f"sweep {sweep}")
        for chunk in range(100):
            clock[0] += 0.3
            update(chunk + 1, 100, 1.0)
    err = capsys.readouterr().err
    lines = err.split("\n")[:-1]
    assert 8 <= len(lines) <= 10 and "\r" not in err
    assert all(line.startswith("sweep ") and " of 100 episodes" in line for line in lines)


def test_short_runs_write_no_progress_to_a_log(run, capsys, mdp_file):
    code, _, err = run("sweep", "--mdp", mdp_file, *SMALL, "--epsilons", 50)
    assert code == 0 and err == ""
    noise = ("noise", "--horizon", 2, "--episodes", 16, "--num-states", 2, "--seeds", 2, "--out", "n.png")
    code, out, err = run(*noise, "--privatizers", "central_laplace")
    assert code == 0 and err == "" and "std: predicted standard deviation" in out


def test_a_counted_loop_follows_the_same_rule(capsys, clock):
    for _ in progress.each(range(10), "steps"):
        clock[0] += 45.0
    lines = capsys.readouterr().err.split("\n")[:-1]
    assert len(lines) == 5 and lines[0].startswith("steps: 2 of 10")


def test_a_terminal_has_its_bar(monkeypatch, capsys, clock):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    update = progress.progress_bar("live")
    update(1, 2, 0.5)
    update(2, 2, 0.5)
    assert "live" in (err := capsys.readouterr().err) and "\r" in err and "compiled in 0.5 s" in err
    assert list(progress.each([1, 2], "live")) == [1, 2]
