"""Commands about privacy alone: account, audit, noise."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

from jaxprivrl import _validate
from jaxprivrl.cli.flags import (
    Command,
    CountFlags,
    MechanismFlags,
    SizeFlags,
    print_json,
    print_table,
    problem_of,
)
from jaxprivrl.experiments import tables
from jaxprivrl.experiments.progress import each


@dataclasses.dataclass(frozen=True)
class Account(SizeFlags, MechanismFlags, Command):
    """Noise scale for a target epsilon, or the guarantee of a noise scale.

    Examples:
      jaxprivrl account --privatizer central_laplace --epsilon 1 --horizon 20 --episodes 20000
      jaxprivrl account --privatizer local_laplace --noise-scale 60 --horizon 20 --episodes 20000 --json
    """

    epsilon: float | None = None
    """Target epsilon."""
    noise_scale: float | None = None
    """Noise scale whose guarantee is asked, instead of --epsilon."""

    def run(self) -> int:
        """Prints the account."""
        from jaxprivrl.privacy import accounting
        from jaxprivrl.privatizers import PRIVATIZERS

        if (self.epsilon is None) == (self.noise_scale is None):
            raise ValueError("Expected either --epsilon or --noise-scale, and not both. Pass one of them.")
        privatizer = PRIVATIZERS[_validate.one_of("privatizer", self.privatizer, PRIVATIZERS)]
        problem = problem_of(self)
        if self.noise_scale is not None:
            guarantee = accounting.guarantee(
                privatizer, problem, self.noise_scale, dp_deltas=(self.dp_delta,), calibration=self.calibration
            )
        elif self.epsilon is not None:
            guarantee = accounting.calibrate(
                privatizer,
                problem,
                self.epsilon,
                dp_delta=self.dp_delta,
                target=self.target,
                calibration=self.calibration,
            ).guarantee
        facts = guarantee.to_json()
        if self.json:
            print_json(facts)
        else:
            print_table(tables.facts({k: v for k, v in facts.items() if k != "statement"}, _ACCOUNT))
            print(facts["statement"])
        return 0


_ACCOUNT = {
    "privatizer": "the mechanism",
    "model": "whom users trust: JDP the agent, SDP a shuffler, LDP nobody; none: no privacy",
    "epsilon_pure": "the pure epsilon that holds; inf: none does",
    "epsilon_at_delta": "the epsilon that holds with delta={}",
    "neighbours": "two inputs are neighbours if so one user is changed",
    "unit": "what is protected",
    "max_episodes": "the guarantee ends after so many episodes",
    "calibration": "how the noise was chosen",
    "noise_scale": "scale of one draw of noise",
    "sensitivity_l1": "how far one user moves all counts, as a sum of absolute values",
    "sensitivity_l2": "the same as a Euclidean norm",
    "levels": "released sums that one user is part of",
    "nominal_epsilon": "the epsilon asked for",
    "nominal_dp_delta": "the delta asked for; none: a pure epsilon",
    "label": "the guarantee in a legend",
}


@dataclasses.dataclass(frozen=True)
class Audit(SizeFlags, MechanismFlags, Command):
    """Measure a lower bound on epsilon from many runs of the real mechanism; exit code 1 if it exceeds the claim.

    Examples:
      jaxprivrl audit --privatizer local_laplace --epsilon 1 --horizon 1
      jaxprivrl audit --privatizer local_laplace --epsilon 1 --horizon 1 --calibration printed --samples 1000000
    """

    epsilon: float = 1.0
    """The claim."""
    horizon: int = 1
    """Steps of an episode; audits have power at small horizons only."""
    episodes: int = 4
    """Episodes of the audited stream."""
    num_states: int = 2
    """States."""
    num_actions: int = 2
    """Actions."""
    samples: int = 100_000
    """Runs of the mechanism on each of the two inputs."""
    seed: int = 0
    """Seed of the audit."""

    def run(self) -> int:
        """Runs the audit."""
        from jaxprivrl.numerics import runtime

        runtime.configure()
        from jaxprivrl.audit import audit
        from jaxprivrl.privatizers import PRIVATIZERS

        result = audit.audit(
            PRIVATIZERS[_validate.one_of("privatizer", self.privatizer, PRIVATIZERS)],
            problem_of(self),
            self.epsilon,
            dp_delta=self.dp_delta,
            target=self.target,
            calibration=self.calibration,
            samples=_validate.positive_int("samples", self.samples),
            seed=self.seed,
        )
        if self.json:
            print_json(result.to_json())
        else:
            print_table(tables.facts(result.to_json(), audit.MEANINGS))
        return 1 if result.verdict == "violated" else 0


@dataclasses.dataclass(frozen=True)
class Noise(SizeFlags, CountFlags, Command):
    """Error of every mechanism against the episode, predicted and measured: which one to pick.

    Examples:
      jaxprivrl noise --horizon 20 --episodes 20000 --epsilon 1 --dp-delta 1e-5
      jaxprivrl noise --homogeneous --families 2 --releases octaves --out noise.png
    """

    epsilon: float = 1.0
    """Target epsilon."""
    privatizers: tuple[str, ...] = ()
    """Privatizers to show; by default all that fit."""
    seeds: int = 8
    """Seeds of the measurement."""
    out: Path = Path("results/noise.png")
    """Figure to write; its ending chooses the format."""

    def run(self) -> int:
        """Evaluates the mechanisms, prints the table, draws the figure."""
        from jaxprivrl.numerics import runtime

        runtime.configure()
        from jaxprivrl.experiments import noise, plots
        from jaxprivrl.privatizers import PRIVATIZERS

        plots.check_file(self.out)
        _validate.epsilon(self.epsilon)
        _validate.probability("dp_delta", self.dp_delta)
        seeds, problem = _validate.positive_int("seeds", self.seeds), problem_of(self)
        names = [_validate.one_of("privatizer", name, PRIVATIZERS) for name in self.privatizers or PRIVATIZERS]
        noise.check(problem, seeds)
        jobs: list[tuple[Any, str]] = []
        for name in dict.fromkeys(names):
            found = noise.targets(PRIVATIZERS[name], self.epsilon)
            jobs += [(PRIVATIZERS[name], target) for target in found]
        if not jobs:
            raise ValueError(f"None of {', '.join(names)} adds noise at epsilon={self.epsilon}. Pass another.")
        errors = []
        for privatizer, target in each(jobs, "noise"):
            try:
                errors.append(noise.evaluate(privatizer, problem, self.epsilon, self.dp_delta, target, seeds))
            except ValueError as error:  # a mechanism that refuses this size says so, the others go on
                print(f"jaxprivrl: left out {privatizer.name}: {error}", file=sys.stderr)
        if not errors:
            raise ValueError("No mechanism fits these sizes; expected at least one. See what each of them says above.")
        rows = noise.table(errors)
        noise.figure(errors, problem, self.out)
        if self.json:
            print_json({"mechanisms": rows, "out": str(self.out)})
        else:
            print_table(rows)
            print("std: predicted standard deviation of one count's noise, the largest (max) and that at the end.")
            print("measured_end: root mean square error of a transition count as the real code releases it.")
            print(f"Wrote {self.out}.")
        return 0
