"""No privatizer at all: the non-private baselines are the learners fed by this."""

from jaxprivrl.privacy.laws import NoNoise
from jaxprivrl.privacy.privatizer import Privatizer
from jaxprivrl.privacy.report import Report
from jaxprivrl.privatizers.local import PerUser
from jaxprivrl.privatizers.runtimes import additive

# Privacy: none.
exact = Privatizer(
    "exact",
    trust="none",
    report=Report(),
    law=NoNoise(),
    strategy=PerUser(),
    runtime=additive,
    summary="No noise: the non-private baselines are the learners fed by this.",
    noise="0",
)
