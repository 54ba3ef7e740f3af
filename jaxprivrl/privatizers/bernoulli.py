"""Randomised bits: sent to the agent as they are, or through a shuffler that mixes those of an epoch."""

from jaxprivrl.privacy.laws import Bits
from jaxprivrl.privacy.privatizer import Privatizer
from jaxprivrl.privacy.report import Report
from jaxprivrl.privatizers.local import PerUser
from jaxprivrl.privatizers.runtimes import bits

# The bits of step h are 1{s_h = s, a_h = a}, the same with s_{h+1} = s2, and a cost bit, 1 with probability c_h at the
# visited (s, a). With g = 1 - 2 flip = tanh(1 / (2 scale)), a reported sign y = +-1 has mean g (2 bit - 1), so
#   release after n users = (sum of the signs) / (2 g) + n / 2
# is unbiased; pooled counters sum the signs of all H steps, and n H / 2. A scale of 0 reports the bits themselves.
# Privacy: pure LDP at 2 H families / scale. At each step and for each family, the cells of two users' visits are at
#   most two, so at most two bits differ; each changes the log-likelihood of its report by at most 1 / scale. A rounded
#   cost is a mixture of the two bits, and so is its report. Reports are 32-bit words compared with a threshold that is
#   rounded towards the fair coin. Summing is post-processing.
# Reference: Chowdhury and Zhou, AAAI 2022, remark on Bernoulli noise; Warner 1965.
local_bernoulli = Privatizer(
    "local_bernoulli",
    trust="LDP",
    report=Report(bits=True),
    law=Bits(),
    strategy=PerUser(),
    runtime=bits,
    summary="Randomised response: each user flips every indicator bit of every step.",
    noise="randomized response on every indicator bit",
)

# For each bit of each step the shuffler permutes the bits of an epoch, so the agent learns their sum: far fewer need to
# be flipped than of `local_bernoulli`.
# Privacy: (epsilon, dp_delta)-SDP: users trust the shuffler of their epoch, not the agent. At each step and for each
#   family at most two bits of a user differ; the sum of a bit over the epoch hides it among the coins that the others
#   tossed (see `composition`), and those of different bits are independent. A user is in one epoch, which alone depends
#   on it; later users may react to its sums. One flip probability serves all epochs, so the smallest one decides.
#   Without the shuffler the reports are still LDP at 2 H families / scale, which is what `epsilon_pure` says.
# Reference: Balle, Bell, Gascon and Nissim, CRYPTO 2019, for the privacy blanket; Chowdhury and Zhou, AAAI 2022, for
#   the bits. Epochs and constants are our own: Bai et al. (arXiv:2411.11647) give no constants to follow.
shuffle_bernoulli = Privatizer(
    "shuffle_bernoulli",
    trust="SDP",
    report=Report(bits=True),
    law=Bits(),
    strategy=PerUser(),
    runtime=bits,
    target="approximate",
    summary="The bits of `local_bernoulli`, mixed by a shuffler over the users of an epoch.",
    noise="randomized bits, mixed by a shuffler over each epoch",
)
