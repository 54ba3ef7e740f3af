"""What users report, and privatizers without a structure over episodes: exact sums and local noise."""

import numpy as np


def counts_of_episode(trajectory, H, S, A, pooled):
    """Increments of N_h(s,a), C_h(s,a), N_h(s,a,s2) from one episode (CZ, section 3), all H steps included.

    visits 1{s_h=s,a_h=a}, costs c_h 1{s_h=s,a_h=a}, transitions 1{s_h=s,a_h=a,s_{h+1}=s2}; pooled sums them over h
    into a stage axis of length 1.
    """
    states, actions, paid = trajectory
    Hs = 1 if pooled else H
    visits = np.zeros((Hs, S, A))
    costs = np.zeros((Hs, S, A))
    transitions = np.zeros((Hs, S, A, S))
    for h in range(H):
        g = 0 if pooled else h
        s, a, s2 = states[h], actions[h], states[h + 1]
        visits[g, s, a] += 1.0
        costs[g, s, a] += paid[h]
        transitions[g, s, a, s2] += 1.0
    return visits, costs, transitions


class Privatizer:
    """Common part: three streams (visits, costs, transitions) of arrays, released after every episode.

    `counts` and `noise` are triples (visits, costs, transitions). `scale` is the noise scale of one unit draw: a
    number, or a triple with one number per stream. families=3 perturbs all three streams; families=2 perturbs only
    costs and transitions and derives visits(s,a) = sum_{s2} released transitions(s,a,s2) (the visit noise is ignored
    and may be None).
    """

    def __init__(self, Hs, S, A, scale=0.0, families=3):
        if families not in (2, 3):
            raise ValueError("families must be 2 or 3")
        self.shapes = [(Hs, S, A), (Hs, S, A), (Hs, S, A, S)]
        self.scale = [float(x) for x in scale] if np.ndim(scale) else [float(scale)] * 3
        self.families = families
        self.episode = 0

    def perturbed(self):
        """Streams that carry their own noise."""
        return [0, 1, 2] if self.families == 3 else [1, 2]

    def assemble(self, streams):
        """(visits, costs, transitions) from the released streams, visits derived when families = 2."""
        costs = np.array(streams[1], dtype=float)
        transitions = np.array(streams[2], dtype=float)
        if self.families == 3:
            return np.array(streams[0], dtype=float), costs, transitions
        visits = np.zeros(self.shapes[0])
        Hs, S, A = self.shapes[0]
        for h in range(Hs):
            for s in range(S):
                for a in range(A):
                    for s2 in range(S):
                        visits[h, s, a] += transitions[h, s, a, s2]
        return visits, costs, transitions

    def release(self):
        """Release before any episode: CZ, Algorithms 1 and 2, line 2: all counts are zero."""
        return self.assemble([np.zeros(shape) for shape in self.shapes])

    def update(self, counts, noise=None):
        raise NotImplementedError


class Exact(Privatizer):
    """Non-private running sums: N^{k+1} = N^k + (counts of episode k). The noise argument is ignored."""

    def __init__(self, Hs, S, A, families=3):
        super().__init__(Hs, S, A, 0.0, families)
        self.total = [np.zeros(shape) for shape in self.shapes]

    def update(self, counts, noise=None):
        self.episode += 1
        for f in range(3):
            self.total[f] = self.total[f] + np.asarray(counts[f], dtype=float)
        return self.assemble(self.total)


class LocalLaplace(Privatizer):
    """Local-Privatizer (CZ, section 5.2): N~^k = sum_{j<k} (sigma^j + b * z^j), fresh unit draw z^j in every cell.

    The paper's scale is b = 3H/eps; here b = `scale`.
    """

    def __init__(self, Hs, S, A, scale, families=3):
        super().__init__(Hs, S, A, scale, families)
        self.total = [np.zeros(shape) for shape in self.shapes]

    def update(self, counts, noise):
        self.episode += 1
        for f in self.perturbed():
            report = np.asarray(counts[f], dtype=float) + self.scale[f] * np.asarray(noise[f], dtype=float)
            self.total[f] = self.total[f] + report
        return self.assemble(self.total)
