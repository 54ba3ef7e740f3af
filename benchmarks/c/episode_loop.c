/* Private-UCB-VI and Private-UCB-PO (Chowdhury & Zhou, AAAI 2022, Algorithms 2 and 1) as a plain single-thread C loop.
 *
 * The baseline that the engine's speed is measured against: one run at a time, one episode after the other, on
 * RiverSwim with stage-dependent counts. It draws the same noise and records the same exact pseudo-regret, so that
 * the times compare.
 *
 *   cc -O3 -march=native -ffast-math -std=c99 -o episode_loop episode_loop.c -lm
 *   episode_loop ucb_vi|ucb_po none|local|tree EPISODES RUNS SCALE E1 E2 BONUS_SCALE ETA FAILURE_PROB SEED
 *
 * SCALE is the Laplace scale of one counter's noise in one episode (local) or of one node (tree). E1 bounds the error
 * of visits and cost sums, E2 that of transitions. ETA is the mirror-descent step of ucb_po, not read by ucb_vi.
 * Prints one JSON line. Other sizes: -DNUM_STATES=... -DHORIZON=... (RiverSwim has two actions).
 *
 * What makes it fast, without intrinsics:
 *  - counters lie as [h][row][a*S + s], row = visits, cost sum, then one row per next state. So the Bellman backup is
 *    "vector over (s,a) += row * scalar V(s')", and the minimum over actions is elementwise between vectors.
 *  - rows are packed (no padding), so that no noise is drawn for padding; a vector load over states overlaps what
 *    follows the row, and the surplus lanes are computed but never read. Work arrays are padded per action, [A][W].
 *  - everything that does not depend on V (square root, division, bonus) is done for all stages before the recursion.
 *  - the value recursion and the regret recursion both run backwards in h: in one loop their latencies overlap.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef NUM_STATES
#define NUM_STATES 6
#endif
#ifndef HORIZON
#define HORIZON 20
#endif
enum {
  S = NUM_STATES,
  A = 2,
  H = HORIZON,
  SA = S * A,
  W = (S + 7) / 8 * 8,                                     /* lanes of a vector over states; work arrays are [A][W] */
  VISITS = 0,                                              /* rows of one stage */
  COSTS = 1,
  TRANSITIONS = 2,
  STAGE = (2 + S) * SA,                                    /* counters of one stage */
  COUNTERS = H * STAGE,                                    /* 2SAH + S^2AH */
  STREAMS = 64,                                            /* interleaved generators */
  PADDED = (COUNTERS + STREAMS - 1) / STREAMS * STREAMS + W, /* overlapping loads may read past the last row */
  LEVELS = 24,                                             /* tree levels: episodes < 2^24, as counts are float32 */
  DRAWS = (H * S + 2 * H + STREAMS - 1) / STREAMS * STREAMS + W
};

/* A loop over the lanes of one vector. GCC 12 unrolls a loop of 8 completely before its vectoriser looks at it, and
   then finds few vectors; "unroll 1" keeps the loop until it has become one vector operation: 4x, ucb_vi without noise.
   -DPLAIN_LOOPS leaves it out, for the time that the same source takes without this knowledge of the compiler. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(PLAIN_LOOPS)
#define EACH(s) _Pragma("GCC unroll 1") for (int s = 0; s < W; s++)
#else
#define EACH(s) for (int s = 0; s < W; s++)
#endif

typedef enum { UCB_VI, UCB_PO } Learner;
typedef enum { NONE, LOCAL, TREE } Noise;

typedef struct {
  Learner learner;
  Noise noise;
  long episodes, runs;
  float scale, eta;
  double e1, e2, bonus_scale, failure_prob;
  uint64_t seed;
} Options;

/* ---- random numbers: xoshiro128++ (Blackman & Vigna), STREAMS independent copies so that loops vectorise ---- */

typedef struct { uint32_t s[4][STREAMS]; } Rng;

static uint64_t splitmix64(uint64_t *x) {
  uint64_t z = (*x += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* 128 random bits of state per stream: with period 2^128 - 1, overlapping streams have negligible probability. */
static void rng_seed(Rng *rng, uint64_t seed, uint64_t run) {
  uint64_t x = seed;
  x = splitmix64(&x) ^ run;
  for (int j = 0; j < STREAMS; j++)
    for (int i = 0; i < 4; i += 2) {
      uint64_t word = splitmix64(&x);
      rng->s[i][j] = (uint32_t)word;
      rng->s[i + 1][j] = (uint32_t)(word >> 32);
    }
}

static inline uint32_t rotl(uint32_t x, int k) { return (x << k) | (x >> (32 - k)); }

static inline uint32_t rng_next(Rng *rng, int j) {
  uint32_t a = rng->s[0][j], b = rng->s[1][j], c = rng->s[2][j], d = rng->s[3][j];
  uint32_t result = rotl(a + d, 7) + a, t = b << 9;
  c ^= a;
  d ^= b;
  b ^= c;
  a ^= d;
  c ^= t;
  d = rotl(d, 11);
  rng->s[0][j] = a, rng->s[1][j] = b, rng->s[2][j] = c, rng->s[3][j] = d;
  return result;
}

/* n is rounded up to a multiple of STREAMS: the caller's array has room. Uniform on [0, 1). */
static void fill_uniform(Rng *restrict rng, float *restrict out, int n) {
  for (int i = 0; i < n; i += STREAMS)
    for (int j = 0; j < STREAMS; j++) out[i + j] = (float)(int32_t)(rng_next(rng, j) >> 8) * 0x1p-24f;
}

/* out = in + Lap(scale): magnitude -scale*log(u) with u in the open interval (0, 1), sign from a bit u does not use.
   One pass over memory serves the running sum (in == out allowed: same index) and the tree (in = the parent level). */
static void add_laplace(Rng *restrict rng, float *out, const float *in, float scale) {
  for (int i = 0; i < COUNTERS; i += STREAMS) {
    float block[STREAMS];
    for (int j = 0; j < STREAMS; j++) {
      uint32_t word = rng_next(rng, j);
      float magnitude = scale * logf(((float)(int32_t)(word >> 9) + 0.5f) * 0x1p-23f);
      block[j] = word & 1 ? magnitude : -magnitude;
    }
    for (int j = 0; j < STREAMS; j++) out[i + j] = in[i + j] + block[j];
  }
}

/* ---- the environment, with what the exact regret needs ---- */

typedef struct {
  double costs[H][SA];
  float cumulative[H][SA][S];      /* cumulative transition probabilities over next states, to sample */
  float gaps[H][A][W];             /* Q*_h(s,a) - V*_h(s) >= 0 */
  float transitions[H][S][A][W];   /* [h][s'][a][s] */
} Mdp;

/* Stage-dependent arrays, although RiverSwim is the same in each stage: the loop must not profit from that. */
static void river_swim(Mdp *mdp) {
  static double p[SA][S];
  double value[S] = {0.0};
  memset(mdp, 0, sizeof *mdp);
  memset(p, 0, sizeof p);
  for (int s = 0; s < S; s++) {
    int right = S + s;
    p[s][s > 0 ? s - 1 : 0] = 1.0;
    if (s == 0) p[right][0] = 0.4, p[right][1] = 0.6;
    else if (s == S - 1) p[right][s] = 0.6, p[right][s - 1] = 0.4;
    else p[right][s - 1] = 0.05, p[right][s] = 0.6, p[right][s + 1] = 0.35;
  }
  for (int h = H - 1; h >= 0; h--) {
    double q[SA], best[S];
    for (int i = 0; i < SA; i++) {
      double total = 0.0;
      mdp->costs[h][i] = i == 0 ? 1.0 - 0.005 : i == SA - 1 ? 0.0 : 1.0;
      q[i] = mdp->costs[h][i];
      for (int t = 0; t < S; t++) {
        mdp->transitions[h][t][i / S][i % S] = (float)p[i][t];
        mdp->cumulative[h][i][t] = (float)(total += p[i][t]);
        q[i] += p[i][t] * value[t];
      }
    }
    for (int s = 0; s < S; s++) {
      best[s] = q[s];
      for (int a = 1; a < A; a++) best[s] = fmin(best[s], q[a * S + s]);
    }
    for (int i = 0; i < SA; i++) mdp->gaps[h][i / S][i % S] = (float)(q[i] - best[i % S]);
    memcpy(value, best, sizeof value);
  }
}

/* ---- one run ---- */

typedef struct {
  float counts[PADDED];            /* true counts; exact in float32 up to 2^24 episodes */
  float release[PADDED];           /* counts + noise: all that planning reads (not used without noise) */
  float noise[LEVELS + 1][PADDED]; /* [0] stays zero. local: [1] is the running sum. tree: [1 + level] is the noise of
                                      the live node of that level plus that of all live nodes above it */
  double cost_sums[H][SA];         /* a float32 running sum of costs would drift; counts hold it rounded */
  float policy[H][A][W], logits[H][A][W], q[H][A][W];
  int32_t greedy[H][W];
  float ties[DRAWS];               /* H*S tie-breaking, then H action, then H next-state uniforms */
  Rng rng;
} Run;

typedef float Table[A][W];

/* Lines "compute c~, P~, bonus" for all stages. Q = base + inverse * sum_s' N~(s') V(s') remains for the recursion. */
static void estimates(const float *restrict counts, float e1, float root_bonus, float linear_bonus,
                      Table *restrict base, Table *restrict inverse) {
  for (int h = 0; h < H; h++)
    for (int a = 0; a < A; a++) {
      const float *visits = counts + h * STAGE + VISITS * SA + a * S, *costs = counts + h * STAGE + COSTS * SA + a * S;
      EACH(s) {
        float m = visits[s] + e1;
        float root = 1.0f / sqrtf(m > 1.0f ? m : 1.0f);
        float inv = root * root;
        inverse[h][a][s] = inv;
        base[h][a][s] = (costs[s] - linear_bonus) * inv - root_bonus * root;
      }
    }
}

/* Optimistic Q of one stage, clipped to [0, H-h+1] (h counts from 0 here). */
static inline void backup(const float *restrict stage, Table base, Table inverse, const float *restrict value,
                          float upper, Table q) {
  for (int a = 0; a < A; a++) {
    const float *row = stage + TRANSITIONS * SA + a * S;
    float future[W] = {0.0f};
    for (int t = 0; t < S; t++)
      EACH(s) future[s] += row[t * SA + s] * value[t];
    EACH(s) {
      float x = base[a][s] + inverse[a][s] * future[s];
      x = x > 0.0f ? x : 0.0f;
      q[a][s] = x < upper ? x : upper;
    }
  }
}

/* D_h(s) = sum_a pi(a|s) (gap_h(s,a) + sum_s' P_h(s'|s,a) D_{h+1}(s')): V^pi - V* without cancellation. */
static inline void regret_backup(const Mdp *restrict mdp, int h, Table policy, float *restrict excess) {
  float next[W] = {0.0f};
  for (int a = 0; a < A; a++) {
    float total[W];
    EACH(s) total[s] = mdp->gaps[h][a][s];
    for (int t = 0; t < S; t++)
      EACH(s) total[s] += mdp->transitions[h][t][a][s] * excess[t];
    EACH(s) next[s] += policy[a][s] * total[s];
  }
  EACH(s) excess[s] = next[s];
}

/* Algorithm 2: V = min_a Q, the greedy action with ties broken uniformly; returns this policy's regret from s=0. */
static float plan_vi(const Mdp *restrict mdp, Run *restrict run, const float *restrict counts, Table *restrict base,
                     Table *restrict inverse) {
  float value[W] = {0.0f}, excess[W] = {0.0f};
  for (int h = H - 1; h >= 0; h--) {
    Table q, policy;
    int32_t left[W] = {0};
    const float *u = run->ties + h * S;
    backup(counts + h * STAGE, base[h], inverse[h], value, (float)(H - h), q);
    EACH(s) value[s] = q[0][s];
    for (int a = 1; a < A; a++)
      EACH(s) value[s] = q[a][s] < value[s] ? q[a][s] : value[s];
    /* Of the m tied actions take number floor(u * m) in the order of actions: count down to it, without a branch.
       u <= 1 - 2^-24, so u * m rounds to a float below m. */
    for (int a = 0; a < A; a++)
      EACH(s) left[s] += q[a][s] == value[s];
    EACH(s) left[s] = (int32_t)(u[s] * (float)left[s]);
    for (int a = 0; a < A; a++)
      EACH(s) {
        int32_t tied = q[a][s] == value[s];
        int32_t chosen = tied & (left[s] == 0);
        left[s] -= tied;
        policy[a][s] = (float)chosen;
        run->greedy[h][s] = chosen ? a : run->greedy[h][s];
      }
    regret_backup(mdp, h, policy, excess);
  }
  return excess[0];
}

/* Algorithm 1, policy evaluation: V = <Q, pi>; returns the regret of pi from s=0. */
static float plan_po(const Mdp *restrict mdp, Run *restrict run, const float *restrict counts, Table *restrict base,
                     Table *restrict inverse) {
  float value[W] = {0.0f}, excess[W] = {0.0f};
  for (int h = H - 1; h >= 0; h--) {
    backup(counts + h * STAGE, base[h], inverse[h], value, (float)(H - h), run->q[h]);
    EACH(s) value[s] = 0.0f;
    for (int a = 0; a < A; a++)
      EACH(s) value[s] += run->policy[h][a][s] * run->q[h][a][s];
    regret_backup(mdp, h, run->policy[h], excess);
  }
  return excess[0];
}

/* Algorithm 1, policy improvement: pi <- pi exp(-eta Q) / norm, kept as logits whose largest is 0: no probability is
   ever lost to underflow, and every state keeps one of at least 1/A. */
static void mirror_descent(Run *restrict run, float eta) {
  for (int h = 0; h < H; h++) {
    float top[W], norm[W] = {0.0f};
    Table moved;
    for (int a = 0; a < A; a++)
      EACH(s) moved[a][s] = run->logits[h][a][s] - eta * run->q[h][a][s];
    EACH(s) top[s] = moved[0][s];
    for (int a = 1; a < A; a++)
      EACH(s) top[s] = moved[a][s] > top[s] ? moved[a][s] : top[s];
    for (int a = 0; a < A; a++)
      EACH(s) {
        run->logits[h][a][s] = moved[a][s] - top[s];
        /* -80: e^-80 is zero for sampling, and below -87 libmvec's expf leaves the vector path. */
        moved[a][s] = expf(run->logits[h][a][s] > -80.0f ? run->logits[h][a][s] : -80.0f);
        norm[s] += moved[a][s];
      }
    for (int a = 0; a < A; a++)
      EACH(s) run->policy[h][a][s] = moved[a][s] / norm[s];
  }
}

/* One trajectory from s=0; its visits, costs and transitions go into the true counts. */
static void rollout(const Mdp *restrict mdp, Run *restrict run, Learner learner) {
  const float *u_action = run->ties + H * S, *u_next = u_action + H;
  int s = 0;
  for (int h = 0; h < H; h++) {
    int a = 0, next = 0;
    if (learner == UCB_VI) {
      a = run->greedy[h][s];
    } else {
      float total = 0.0f;
      for (int b = 0; b < A - 1; b++) a += (total += run->policy[h][b][s]) <= u_action[h];
    }
    int i = a * S + s;
    for (int t = 0; t < S - 1; t++) next += mdp->cumulative[h][i][t] <= u_next[h];
    float *stage = run->counts + h * STAGE;
    stage[VISITS * SA + i] += 1.0f;
    stage[COSTS * SA + i] = (float)(run->cost_sums[h][i] += mdp->costs[h][i]);
    stage[(TRANSITIONS + next) * SA + i] += 1.0f;
    s = next;
  }
}

/* The privatizer after `finished` episodes. Returns what planning of the next episode reads. */
static const float *privatize(Run *restrict run, const Options *o, uint32_t finished) {
  const float *noise;
  if (o->noise == NONE) return run->counts;
  if (o->noise == LOCAL) {
    add_laplace(&run->rng, run->noise[1], run->noise[1], o->scale);
    noise = run->noise[1];
  } else {
    /* Nodes alive after k episodes are the set bits of k; the new one is the lowest, and the nodes above it have not
       changed since the next higher one was made, so its stored sum is still right: O(1) per counter. */
    uint32_t above = finished & (finished - 1);
    int level = __builtin_ctz(finished), parent = above ? 1 + __builtin_ctz(above) : 0;
    add_laplace(&run->rng, run->noise[1 + level], run->noise[parent], o->scale);
    noise = run->noise[1 + level];
  }
  for (int i = 0; i < COUNTERS; i++) run->release[i] = run->counts[i] + noise[i];
  return run->release;
}

static void simulate(const Mdp *mdp, Run *run, const Options *o, uint64_t index, double *final, double *last_tenth) {
  static Table base[H], inverse[H];
  double steps = (double)o->episodes * H;
  double lc = sqrt(2.0 * log(4.0 * SA * steps / o->failure_prob));
  double lp = sqrt(4.0 * S * log(6.0 * SA * steps / o->failure_prob));
  /* beta^c + beta^pv (VI) or beta^c + H beta^p (PO), as root/sqrt(M) + linear/M */
  float root = (float)(o->bonus_scale * (lc + H * (o->learner == UCB_VI ? lc : lp)));
  float linear = (float)(o->bonus_scale * (3.0 * o->e1 + H * (S * o->e2 + 2.0 * o->e1)));
  long tail = o->episodes - (o->episodes + 9) / 10;
  const float *counts;
  memset(run, 0, sizeof *run);
  rng_seed(&run->rng, o->seed, index);
  for (int h = 0; h < H; h++)
    for (int i = 0; i < SA; i++) run->policy[h][i / S][i % S] = 1.0f / A;
  *final = *last_tenth = 0.0;
  counts = run->counts; /* episode 1 plans with exact zeros */
  for (long k = 0; k < o->episodes; k++) {
    float regret;
    fill_uniform(&run->rng, run->ties, H * S + 2 * H);
    estimates(counts, (float)o->e1, root, linear, base, inverse);
    if (o->learner == UCB_VI) regret = plan_vi(mdp, run, counts, base, inverse);
    else regret = plan_po(mdp, run, counts, base, inverse);
    rollout(mdp, run, o->learner);
    if (o->learner == UCB_PO) mirror_descent(run, o->eta);
    counts = privatize(run, o, (uint32_t)(k + 1));
    *final += regret;
    if (k >= tail) *last_tenth += regret;
  }
  *last_tenth /= (double)(o->episodes - tail);
}

static int parse(int argc, char **argv, Options *o) {
  static const char *learners[] = {"ucb_vi", "ucb_po"}, *noises[] = {"none", "local", "tree"};
  int learner = -1, noise = -1;
  if (argc != 12) return 0;
  for (int i = 0; i < 2; i++)
    if (!strcmp(argv[1], learners[i])) learner = i;
  for (int i = 0; i < 3; i++)
    if (!strcmp(argv[2], noises[i])) noise = i;
  o->learner = (Learner)learner, o->noise = (Noise)noise;
  o->episodes = atol(argv[3]), o->runs = atol(argv[4]);
  o->scale = (float)atof(argv[5]), o->e1 = atof(argv[6]), o->e2 = atof(argv[7]);
  o->bonus_scale = atof(argv[8]), o->eta = (float)atof(argv[9]), o->failure_prob = atof(argv[10]);
  o->seed = strtoull(argv[11], NULL, 10);
  return learner >= 0 && noise >= 0 && o->episodes > 0 && o->episodes < 1L << 24 && o->runs > 0 &&
         o->failure_prob > 0.0;
}

int main(int argc, char **argv) {
  static Mdp mdp; /* static: large and aligned for vectors */
  static Run run;
  Options options;
  double mean = 0.0, squares = 0.0, last_tenth = 0.0;
  if (!parse(argc, argv, &options)) {
    fprintf(stderr,
            "usage: %s ucb_vi|ucb_po none|local|tree EPISODES RUNS SCALE E1 E2 BONUS_SCALE ETA FAILURE_PROB SEED\n"
            "with 0 < EPISODES < 2^24\n",
            argv[0]);
    return 2;
  }
  river_swim(&mdp);
  clock_t start = clock();
  for (long r = 0; r < options.runs; r++) {
    double final, tail, delta;
    simulate(&mdp, &run, &options, (uint64_t)r, &final, &tail);
    delta = final - mean; /* Welford: regrets are large and close together */
    mean += delta / (double)(r + 1);
    squares += delta * (final - mean);
    last_tenth += tail / (double)options.runs;
  }
  double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
  printf("{\"cpu_seconds\": %.6f, \"us_per_episode_run\": %.4f, \"mean_final_regret\": %.6f, "
         "\"std_final_regret\": %.6f, \"last_tenth_regret_per_episode\": %.8f}\n",
         seconds, 1e6 * seconds / ((double)options.episodes * (double)options.runs), mean,
         options.runs > 1 ? sqrt(squares / (double)(options.runs - 1)) : 0.0, last_tenth);
  return 0;
}
