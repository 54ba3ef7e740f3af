"""Every benchmark runs in its smallest form and prints what it promises."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
KEYS = {
    "engine": {"cases", "machine", "noise_alone_us", "speedup_of_two_cores", "cores_free",
               "largest_difference_to_numpy"},
    "scaling": {"points", "fits", "out"},
    "theory": {"rows", "seconds"},
    "headline": {"curves", "episodes_to_learn", "seconds"},
}  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
def test_smoke(name, tmp_path):
    out = [] if name == "engine" else ["--out", str(tmp_path / "figure.png")]
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--smoke", "--json", *out]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert set(found) == KEYS[name]
    if out:
        assert (tmp_path / "figure.png").stat().st_size > 10_000
    if name == "engine":
        needed = {"name", "us_per_episode_run_cpu", "us_per_episode_run_wall", "ratio_to_numpy", "ratio_to_c",
                  "ratio_to_c_vectorized", "ratio_to_noise"}  # fmt: skip
        assert all(needed <= set(case) for case in found["cases"])
        assert found["largest_difference_to_numpy"] < 1e-4
    if name == "theory":
        assert all(row["verdict"] in ("supports", "beyond the bound") for row in found["rows"])


def test_numpy_loop_runs_on_its_own(tmp_path):
    """And imports nothing of the package that it is compared with."""
    loop = BENCHMARKS / "numpy_loop.py"
    assert "jaxprivrl" not in {line.split()[1].partition(".")[0] for line in loop.read_text().splitlines()
                               if line.startswith(("import ", "from "))}  # fmt: skip
    command = [sys.executable, str(loop), "ucb_po", "central_laplace", "--episodes", "20", "--runs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    assert set(json.loads(done.stdout)) == {"cpu_seconds", "us_per_episode_run", "mean_final_regret",
                                            "std_final_regret", "last_tenth_regret_per_episode"}  # fmt: skip
