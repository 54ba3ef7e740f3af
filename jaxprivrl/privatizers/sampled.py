"""Local mechanisms whose users report one step, or one family of one step, with the whole budget."""

from jaxprivrl.privacy.laws import Laplace
from jaxprivrl.privacy.privatizer import Privatizer
from jaxprivrl.privacy.report import Report
from jaxprivrl.privatizers.local import PerUser
from jaxprivrl.privatizers.runtimes import additive

# report = H 1{h drawn} (x_h + scale * Lap(1)) for each counter of step h (pooled: of the one stage there is)
# Unbiased. The noise of a stage-dependent count has variance 2 H scale^2, with a scale that is H times smaller than
# that of `local_laplace`: H times less. Drawing a step adds the variance (H - 1) x_h^2, which depends on the data
# (pooled: H sum_h x_h^2 - (sum_h x_h)^2); its largest value is stated, (H - 1) or H^2 / 4 per user.
# Privacy: pure LDP at 2 families / scale. The drawn step does not depend on the data, so the report is a mixture over
#   h, with the same weights for both users, of reports in which at most two cells of each family differ, by at most 1;
#   that h is public does not change this.
# Reference: Nguyen et al. 2016 (arXiv:1606.05053) and Wang et al., ICDE 2019, who sample attributes in this way.
local_sampled = Privatizer(
    "local_sampled",
    trust="LDP",
    report=Report(step=True),
    law=Laplace(),
    strategy=PerUser(),
    runtime=additive,
    summary="Each user reports one step h, drawn uniformly, with the whole budget; the report is weighted by H.",
    noise="one sampled step per user, with the whole budget",
)

# report = H F 1{h and f drawn} (x_hf + scale * Lap(1)) for each counter of family f at step h, F = families
# A second lever: the scale is F times smaller again and the weight F times larger, but one report in F carries noise,
# so its variance, 2 H F scale^2, is F times less, pooled counts (H times that) included. Drawing adds (H F - 1) x_h^2,
# pooled H F sum_h x_h^2 - (sum_h x_h)^2; its largest value is H F - 1 or H^2 (F - 1) per user. It pays while
# 8 H F / epsilon^2 is large beside that.
# Privacy: pure LDP at 2 / scale: a mixture over (h, f), drawn independently of the data, of reports in which at most
#   two cells of one family differ, by at most 1.
# Reference: as for `local_sampled`.
local_sampled_family = Privatizer(
    "local_sampled_family",
    trust="LDP",
    report=Report(step=True, family=True),
    law=Laplace(),
    strategy=PerUser(),
    runtime=additive,
    summary="Each user reports one family of one step, both drawn uniformly, with the whole budget.",
    noise="one family of one sampled step: √F less again, F families",
)
