"""Commands about privacy alone: account, audit, mechanisms."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

from jaxprivrl import _validate
from jaxprivrl.cli.flags import MechanismFlags, print_json, print_table, problem_of


@dataclasses.dataclass(frozen=True)
class Account(MechanismFlags):
    """Noise scale for a target epsilon, or the guarantee of a noise scale.

    Examples:
      jaxprivrl account --privatizer central_laplace --epsilon 1 --horizon 20 --episodes 20000
      jaxprivrl account --privatizer local_laplace --noise-scale 60 --horizon 20 --episodes 20000 --json
    """

    epsilon: float | None = None
    """Target epsilon."""
    noise_scale: float | None = None
    """Noise scale whose guarantee is asked, instead of --epsilon."""
    horizon: int = 20
    """Steps of an episode."""
    episodes: int = 20_000
    """Largest number of episodes."""
    num_states: int = 6
    """States; they do not change the sensitivity, only the error bounds."""
    num_actions: int = 2
    """Actions; likewise."""
    neighbours: str = "replace"
    """replace (one user replaced) or add_remove (one user's contribution set to zero)."""
    json: bool = False
    """Print one JSON object on stdout and nothing else."""

    def run(self) -> int:
        """Prints the account."""
        from jaxprivrl import accounting

        if (self.epsilon is None) == (self.noise_scale is None):
            raise ValueError("Expected either --epsilon or --noise-scale, and not both. Pass one of them.")
        _validate.one_of("privatizer", self.privatizer, accounting.MECHANISMS)
        problem = problem_of(self, self.num_states, self.num_actions)
        common: dict[str, Any] = {"calibration": self.calibration, "neighbours": self.neighbours}
        if self.noise_scale is not None:
            guarantee = accounting.guarantee(
                self.privatizer, problem, self.noise_scale, dp_deltas=(self.dp_delta,), **common
            )
        elif self.epsilon is not None:
            guarantee = accounting.calibrate(
                self.privatizer, problem, self.epsilon, dp_delta=self.dp_delta, target=self.target, **common
            ).guarantee
        facts = guarantee.to_json()
        if self.json:
            print_json(facts)
        else:
            print_table([{"quantity": k, "value": v} for k, v in facts.items() if k != "statement"])
            print(facts["statement"])
        return 0


@dataclasses.dataclass(frozen=True)
class Audit(MechanismFlags):
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
    json: bool = False
    """Print one JSON object on stdout and nothing else."""

    def run(self) -> int:
        """Runs the audit."""
        from jaxprivrl import runtime

        runtime.configure()
        from jaxprivrl import auditing
        from jaxprivrl.privatizers import PRIVATIZERS

        _validate.one_of("privatizer", self.privatizer, PRIVATIZERS)
        result = auditing.audit(
            self.privatizer,
            problem_of(self, self.num_states, self.num_actions),
            self.epsilon,
            dp_delta=self.dp_delta,
            target=self.target,
            calibration=self.calibration,
            samples=_validate.positive_int("samples", self.samples),
            seed=self.seed,
        )
        facts = result.to_json()
        if self.json:
            print_json(facts)
        else:
            print_table([{"quantity": k, "value": v} for k, v in facts.items()])
        return 1 if facts["verdict"] == "violated" else 0


@dataclasses.dataclass(frozen=True)
class Mechanisms:
    """Error of every mechanism against the episode, predicted and measured: which one to pick.

    Examples:
      jaxprivrl mechanisms --horizon 20 --episodes 20000 --epsilon 1 --dp-delta 1e-5
      jaxprivrl mechanisms --homogeneous --families 2 --out mechanisms.png
    """

    epsilon: float = 1.0
    """Target epsilon."""
    dp_delta: float = 1e-5
    """Delta of approximate targets."""
    horizon: int = 20
    """Steps of an episode."""
    episodes: int = 20_000
    """Largest number of episodes."""
    num_states: int = 6
    """States."""
    num_actions: int = 2
    """Actions."""
    families: int = 3
    """Released count families: 3 as in the paper, or 2 with visits derived by summing."""
    homogeneous: bool = False
    """Pool counts over the steps of an episode."""
    centred_costs: bool = False
    """Count costs as c - 1/2: a user moves less, so less noise is needed."""
    privatizers: tuple[str, ...] = ()
    """Privatizers to show; by default all that fit."""
    seeds: int = 8
    """Seeds of the measurement."""
    out: Path = Path("results/mechanisms.png")
    """Figure to write; its ending chooses the format."""
    json: bool = False
    """Print one JSON object on stdout and nothing else."""

    def run(self) -> int:
        """Evaluates the mechanisms, prints the table, draws the figure."""
        from tqdm import tqdm

        from jaxprivrl import runtime

        runtime.configure()
        from jaxprivrl import mechanisms
        from jaxprivrl.privatizers import PRIVATIZERS

        _validate.epsilon(self.epsilon)
        problem = problem_of(self, self.num_states, self.num_actions)
        for name in self.privatizers:
            _validate.one_of("privatizer", name, PRIVATIZERS)
        names = self.privatizers or tuple(PRIVATIZERS)
        jobs = [(n, t) for n in names for t in mechanisms.targets(n, self.epsilon)]
        errors = []
        for name, target in tqdm(jobs, desc="mechanisms", file=sys.stderr):
            try:
                errors.append(
                    mechanisms.evaluate(name, problem, self.epsilon, self.dp_delta, target, _at_least(self.seeds))
                )
            except ValueError as error:  # a mechanism that refuses this size says so, the others go on
                print(f"jaxprivrl: left out {name}: {error}", file=sys.stderr)
        rows = mechanisms.table(errors)
        mechanisms.figure(errors, problem, self.out)
        if self.json:
            print_json({"mechanisms": rows, "out": str(self.out)})
        else:
            print_table(rows)
            print(f"Wrote {self.out}.")
        return 0


def _at_least(seeds: int) -> int:
    return _validate.positive_int("seeds", seeds)
