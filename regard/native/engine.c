/* The Transformer's inference in C: the encoder, the decoder, the choice of the next tokens, and heads on an encoder.

   Letters: m rows, K inputs and N outputs of a product, d width of the model, S source length, T tokens so far.

   Nothing here remembers: weights, caches, threads and room to work belong to the caller (native/model.py).
   A row never meets another: sentences lie one after the other without padding, and each number of a product is one
   sum over k = 0, 1, 2, ... in this order, however many rows share the work. So a sentence gets the same bits alone and
   in any company.

   Vectors are those of GCC and Clang: 16 numbers, which the compiler maps to what the processor has. The widths d_k and
   d_v of a head are multiples of 16: the caller fills them up with zeros. */

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

#include "vectors.h"

/* y = x W + b. W lies in panels: for each of them K rows of 32 columns; in int8 K/4 rows of 32 columns of 4; in int4 K/32
   blocks: in bf16 the scales of 32 columns and their least numbers, then 8 rows of 64 bytes, 4 for a column below and 4
   for one above. */
#define GROUP 32
#define GROUP_BYTES (PANEL * (4 + GROUP / 2))
typedef struct {
  int32_t K, N;
  const float *w;       /* fp32 weights, or */
  const uint16_t *h;    /* bf16 weights: of fp32 the first half, or */
  const int8_t *q;      /* int8 weights with, for each column, */
  const float *scale;   /* what a unit is worth, and */
  const int32_t *sum;   /* 128 times the sum of the column */
  const float *bias;    /* may be absent */
  const uint8_t *n;     /* int4 weights, in the place of all but the bias */
} Product;

typedef struct { const float *gain, *bias; float eps; } Norm; /* no bias: RMSNorm; no gain: none at all */

typedef struct { int32_t heads, kv_heads; } Heads; /* of one attention; none of either where it has lost them all */

typedef struct {
  Norm attention_norm, cross_norm, feed_forward_norm;
  Heads own, read;                           /* of self-attention and of attention to the source */
  Product query_key_value, output;           /* self-attention */
  Product query, key_value, cross_output;    /* attention to the source; absent where there is none to read */
  Product inner, outer;                      /* feed-forward; a gate, if the first has twice the columns */
  int32_t activation; /* of it: 0 relu, 1 gelu, 2 silu, 3 sigmoid, 4 gelu by tanh, 5 tanh, 6 gelu by sigmoid */
} Layer;

typedef struct {
  const float *table;   /* (V, d) fp32, or */
  const uint16_t *h;    /* bf16, or */
  const int8_t *q;      /* int8 with */
  const float *scale;   /* a scale for each token; without any of them, a token is its column of the model's logits */
  const float *positions; /* (longest, width), may be absent */
  const float *segments;  /* (some, width): which text of a pair; may be absent */
  Norm norm;
  float factor;
  int32_t tokens, width;  /* which is d, unless there is */
  Product widen;          /* from the one to the other */
} Embedding;

/* What stands on an encoder: each of these may be absent, and then comes the product that Model calls logits. */
typedef struct {
  int32_t pool;       /* what stands for a text: 1 its first vector, 2 the last, 3 the mean, 4 the largest; 0: all do */
  int32_t activation; /* of the inner layer; -1: none */
  int32_t unit;       /* vectors have length 1 */
  Product inner;
  Norm norm;
} Head;

typedef struct {
  int32_t d, heads, kv_heads, d_k, d_v, d_ff; /* heads and d_ff: of a layer at most */
  int32_t encoder_layers, decoder_layers;
  int32_t pre, gated; /* gated: some layer */
  int32_t causal;     /* whether a place of the encoder sees only what is before it */
  int32_t turned;     /* numbers of a head that RoPE turns, in pairs i and turned / 2 + i; 0: none */
  const float *turns; /* (longest, turned): the cosine of each pair's angle, then the sine */
  float score_scale;
  Embedding source, target;
  const Layer *encoder, *decoder;
  Norm encoder_norm, decoder_norm;
  Head head;
  Product logits;
} Model;

/* What an adapter adds to a model that stays as it is. Beside a product: y += (x A) B, absent where A has no columns. */
typedef struct { Product a, b; } Low;

typedef struct { Low query_key_value, output, query, key_value, cross_output, inner, outer; } Lows; /* of a layer */

typedef struct {
  const Lows *encoder, *decoder;
  int32_t own; /* whether it has a head of its own: */
  Head head;
  Product logits;
} Adapter;

/* ---------------------------------------------------------------------------------------------- threads */

/* Helpers that wait for work: first awake, for the next product is near; after a while asleep. Work lies in pieces that
   whoever comes takes. A helper that the system keeps away therefore costs nothing: the caller does the work alone. */
#define MOST 64
#define AWAKE 20000
typedef struct {
  int32_t threads; /* with the caller */
  int32_t pieces;
  atomic_int next, open, inside; /* piece to be taken; whether there is work; helpers that may be at it */
  atomic_int round, asleep, quit;
  void (*job)(void *, int, int);
  void *about;
  pthread_mutex_t lock;
  pthread_cond_t wake;
  pthread_t helper[MOST];
} Team;

INLINE void rest(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

static void take_pieces(Team *t) {
  for (int i; (i = atomic_fetch_add(&t->next, 1)) < t->pieces;) t->job(t->about, i, t->pieces);
}

static void *help(void *team) {
  Team *t = team;
  int seen = 0;
  for (;;) {
    for (int i = 0; i < AWAKE && atomic_load(&t->round) == seen; i++) rest();
    if (atomic_load(&t->round) == seen) {
      pthread_mutex_lock(&t->lock);
      atomic_fetch_add(&t->asleep, 1);
      while (atomic_load(&t->round) == seen) pthread_cond_wait(&t->wake, &t->lock);
      atomic_fetch_sub(&t->asleep, 1);
      pthread_mutex_unlock(&t->lock);
    }
    seen = atomic_load(&t->round);
    if (atomic_load(&t->quit)) return 0;
    atomic_fetch_add(&t->inside, 1);
    if (atomic_load(&t->open)) take_pieces(t); /* once inside, the work cannot be cleared away */
    atomic_fetch_sub(&t->inside, 1);
  }
}

static void call(Team *t) {
  atomic_fetch_add(&t->round, 1);
  if (atomic_load(&t->asleep)) {
    pthread_mutex_lock(&t->lock);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
  }
}

static void together(Team *t, void (*job)(void *, int, int), void *about, int pieces) {
  t->job = job, t->about = about, t->pieces = pieces;
  atomic_store(&t->next, 0);
  atomic_store(&t->open, 1);
  call(t);
  take_pieces(t);
  atomic_store(&t->open, 0);
  for (int i = 0; atomic_load(&t->inside); i++) i < AWAKE ? rest() : (void)sched_yield();
}

/* Threads that share each large product; 0 if the system gives none. */
Team *gather(int32_t threads) {
  Team *t = calloc(1, sizeof *t);
  if (!t) return 0;
  pthread_mutex_init(&t->lock, 0);
  pthread_cond_init(&t->wake, 0);
  for (t->threads = 1; t->threads < threads && t->threads < MOST; t->threads++)
    if (pthread_create(&t->helper[t->threads], 0, help, t)) break;
  return t;
}

void dismiss(Team *t) {
  if (!t) return;
  atomic_store(&t->quit, 1);
  call(t);
  for (int i = 1; i < t->threads; i++) pthread_join(t->helper[i], 0);
  pthread_cond_destroy(&t->wake);
  pthread_mutex_destroy(&t->lock);
  free(t);
}

/* ---------------------------------------------------------------------------------------------- products */

enum { SET, ADD, RELU, ACTIVATE }; /* what happens to C: it becomes y, or grows by y, or becomes an activation of y */

INLINE void put(part y, float *c, int mode, int room) {
  float *to = c, edge[WIDTH];
  if (room < WIDTH) {
    memcpy(edge, c, sizeof(float) * room);
    to = edge;
  }
  if (mode == RELU) y = (part)(~((part){} > y) & (part_ints)y); /* what is no number stays */
  if (mode == ADD) y = *(part *)to + y;
  *(part *)to = y;
  if (room < WIDTH) memcpy(c, edge, sizeof(float) * room);
}

/* Rows of a tile at most, and registers for each of r: sums, weights and a number fit into those that there are. */
#define TALL (WIDTH == 8 ? 6 : TILE)
#define SIDE(r) (WIDTH == 8 && r > 3 ? 2 : PARTS)

/* m rows (a constant) times `panels` panels (a constant), of each `side` registers: each sum runs over k in order.
   Weights are in bf16 if they are `half` (a constant): each is made a float as it is read, so only they are rounded.
   Few rows wait for weights and not for sums, so those of the next panel are fetched meanwhile: of each 32 the lines of
   64 bytes whose bits `ahead` has. */
INLINE void tile(int m, int panels, int first, int side, int half, const float *a, int lda, const Product *p, int panel,
                 float *c, int ldc, int mode, int ahead) {
  part sum[SUMS];
  const int K = p->K, N = p->N;
  const size_t begin = (size_t)panel * K * PANEL + first * WIDTH;
#pragma GCC unroll 32
  for (int i = 0; i < m * panels * side; i++) sum[i] = (part){};
  for (int k = 0; k < K; k++) {
#pragma GCC unroll 8
    for (int j = 0; j < panels; j++) {
      const size_t at = begin + ((size_t)j * K + k) * PANEL;
      part of[PARTS];
#pragma GCC unroll 8
      for (int h = 0; h < side; h++)
        of[h] = half ? widened(p->h + at + h * WIDTH) : *(const part *)(p->w + at + h * WIDTH);
      const size_t next = at + (size_t)K * PANEL;
      if (half && ahead & 1) NEAR(p->h + next);
      if (!half && ahead & 1 && first == 0) NEAR(p->w + next);
      if (!half && ahead & 2 && (first + side) * WIDTH == PANEL) NEAR(p->w + next + 16 - first * WIDTH);
#pragma GCC unroll 12
      for (int i = 0; i < m; i++) {
        float x = a[(size_t)i * lda + k];
#pragma GCC unroll 8
        for (int h = 0; h < side; h++) sum[(j * m + i) * side + h] += x * of[h];
      }
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < panels; j++)
#pragma GCC unroll 8
    for (int h = 0; h < side; h++) {
      int n = (panel + j) * PANEL + (first + h) * WIDTH, room = N - n;
      if (room <= 0) continue;
      part b = {};
      if (p->bias) memcpy(&b, p->bias + n, sizeof(float) * (room < WIDTH ? room : WIDTH));
#pragma GCC unroll 12
      for (int i = 0; i < m; i++) put(sum[(j * m + i) * side + h] + b, c + (size_t)i * ldc + n, mode, room);
    }
}

/* The same for rows x of bytes, quantised with the scales `unit`. Sums of integers are exact in any order. */
INLINE void tile_int8(int m, const uint8_t *a, int lda, const float *unit, const Product *p, int panel, float *c,
                      int ldc, int mode) {
  const int K4 = (p->K + 3) / 4, N = p->N;
  const int8_t *w = p->q + (size_t)panel * K4 * 4 * PANEL;
  part_ints sum[TILE * PARTS];
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
#pragma GCC unroll 24
  for (int i = 0; i < m * PARTS; i++) sum[i] = (part_ints){};
  for (int k = 0; k < K4; k++) {
    const int8_t *wk = w + (size_t)k * 4 * PANEL;
    part_ints low = *(const part_ints *)wk, high = *(const part_ints *)(wk + 4 * WIDTH);
#pragma GCC unroll 12
    for (int i = 0; i < m; i++) {
      int32_t four;
      memcpy(&four, a + (size_t)i * lda + 4 * k, 4);
      part_ints x = (part_ints){} + four; /* in words of its own, for by GCC's the sums go through memory */
      __asm__("vpdpbusd %2, %1, %0" : "+v"(sum[i * 2]) : "v"(x), "v"(low));
      __asm__("vpdpbusd %2, %1, %0" : "+v"(sum[i * 2 + 1]) : "v"(x), "v"(high));
    }
  }
#elif defined(__AVX2__)
  /* Three rows and 16 columns at a time: of four columns each the sums of the first two products, and of the others. */
#pragma GCC unroll 4
  for (int r = 0; r < m; r += 3)
    for (int h = 0; h < PANEL; h += 16) {
      const int rows = m - r < 3 ? m - r : 3;
      __m256i s[12], x[3];
#pragma GCC unroll 12
      for (int i = 0; i < rows * 4; i++) s[i] = _mm256_setzero_si256();
      for (int k = 0; k < K4; k++) {
#pragma GCC unroll 3
        for (int i = 0; i < rows; i++) {
          int32_t four;
          memcpy(&four, a + (size_t)(r + i) * lda + 4 * k, 4);
          x[i] = _mm256_cvtepu8_epi16(_mm_set1_epi32(four));
        }
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
          const int8_t *wk = w + ((size_t)k * PANEL + h + j * 4) * 4;
          __m256i of = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)wk));
#pragma GCC unroll 3
          for (int i = 0; i < rows; i++) s[i * 4 + j] = _mm256_add_epi32(s[i * 4 + j], _mm256_madd_epi16(x[i], of));
        }
      }
#pragma GCC unroll 6
      for (int i = 0; i < rows * 2; i++) {
        __m256i y = _mm256_permute4x64_epi64(_mm256_hadd_epi32(s[i * 2], s[i * 2 + 1]), 0xD8);
        memcpy((int32_t *)sum + (r + i / 2) * PANEL + h + i % 2 * 8, &y, sizeof y);
      }
    }
#else
  for (int i = 0; i < m; i++) {
    int32_t s[PANEL] = {0};
    for (int k = 0; k < K4; k++)
      for (int j = 0; j < PANEL; j++)
        for (int f = 0; f < 4; f++)
          s[j] += (int32_t)a[(size_t)i * lda + 4 * k + f] * w[((size_t)k * PANEL + j) * 4 + f];
    memcpy(&sum[i * PARTS], s, sizeof s);
  }
#endif
#pragma GCC unroll 8
  for (int h = 0; h < PARTS; h++) {
    int n = panel * PANEL + h * WIDTH, room = N - n, some = room < WIDTH ? room : WIDTH;
    if (room <= 0) continue;
    part b = {}, scale = {};
    part_ints offset = {};
    if (p->bias) memcpy(&b, p->bias + n, sizeof(float) * some);
    memcpy(&scale, p->scale + n, sizeof(float) * some);
    memcpy(&offset, p->sum + n, sizeof(int32_t) * some);
#pragma GCC unroll 12
    for (int i = 0; i < m; i++) {
      part y = __builtin_convertvector(sum[i * PARTS + h] - offset, part) * (unit[i] * scale) + b;
      put(y, c + (size_t)i * ldc + n, mode, room);
    }
  }
}

/* The same for weights of four bits. Bytes are signed here, and of each group of 32 there is a unit, and what it is all
   worth: units times the sum. Groups are added in their order. */
INLINE void tile_int4(int m, const uint8_t *a, int lda, const float *unit, const Product *p, int panel, float *c,
                      int ldc, int mode) {
  const int G = p->K / GROUP, N = p->N;
  const uint8_t *block = p->n + (size_t)panel * G * GROUP_BYTES;
  part y[TILE * PARTS];
#pragma GCC unroll 24
  for (int i = 0; i < m * PARTS; i++) y[i] = (part){};
  for (int g = 0; g < G; g++, block += GROUP_BYTES, a += GROUP, unit += 2) {
    const uint8_t *w = block + 4 * PANEL;
    part_ints sum[TILE * PARTS];
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
#pragma GCC unroll 24
    for (int i = 0; i < m * PARTS; i++) sum[i] = (part_ints){};
#pragma GCC unroll 8
    for (int k = 0; k < GROUP / 4; k++) {
      part_ints both = *(const part_ints *)(w + k * 2 * PANEL), low = both & 0x0F0F0F0F, high = both >> 4 & 0x0F0F0F0F;
#pragma GCC unroll 12
      for (int i = 0; i < m; i++) {
        int32_t four;
        memcpy(&four, a + (size_t)i * lda + 4 * k, 4);
        part_ints x = (part_ints){} + four;
        __asm__("vpdpbusd %2, %1, %0" : "+v"(sum[i * 2]) : "v"(low), "v"(x));
        __asm__("vpdpbusd %2, %1, %0" : "+v"(sum[i * 2 + 1]) : "v"(high), "v"(x));
      }
    }
#elif defined(__AVX2__)
    /* Sums of 16 bits hold a group: 8 times 2 products of at most 15 · 127. */
    const __m256i below = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
    for (int r = 0; r < m; r += 3) {
      const int rows = m - r < 3 ? m - r : 3;
      __m256i s[12];
#pragma GCC unroll 12
      for (int i = 0; i < rows * 4; i++) s[i] = _mm256_setzero_si256();
      for (int k = 0; k < GROUP / 4; k++)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
          __m256i both = _mm256_loadu_si256((const __m256i *)(w + k * 2 * PANEL + h * PANEL));
          __m256i low = _mm256_and_si256(both, below), high = _mm256_and_si256(_mm256_srli_epi16(both, 4), below);
#pragma GCC unroll 3
          for (int i = 0; i < rows; i++) {
            int32_t four;
            memcpy(&four, a + (size_t)(r + i) * lda + 4 * k, 4);
            __m256i x = _mm256_set1_epi32(four);
            s[i * 4 + h] = _mm256_add_epi16(s[i * 4 + h], _mm256_maddubs_epi16(low, x));
            s[i * 4 + 2 + h] = _mm256_add_epi16(s[i * 4 + 2 + h], _mm256_maddubs_epi16(high, x));
          }
        }
#pragma GCC unroll 12
      for (int i = 0; i < rows * 4; i++) {
        __m256i of = _mm256_madd_epi16(s[i], ones);
        memcpy((int32_t *)sum + (r + i / 4) * PANEL + i % 4 * 8, &of, sizeof of);
      }
    }
#else
    for (int i = 0; i < m; i++) {
      int32_t s[PANEL] = {0};
      for (int k = 0; k < GROUP; k++)
        for (int j = 0; j < PANEL; j++)
          s[j] += (int8_t)a[(size_t)i * lda + k] *
                  (w[k / 4 * 2 * PANEL + j % (PANEL / 2) * 4 + k % 4] >> j / (PANEL / 2) * 4 & 15);
      memcpy(&sum[i * PARTS], s, sizeof s);
    }
#endif
#pragma GCC unroll 8
    for (int h = 0; h < PARTS; h++) {
      const uint16_t *ends = (const uint16_t *)block + h * WIDTH;
      part scale = widened(ends), least = widened(ends + PANEL);
#pragma GCC unroll 12
      for (int i = 0; i < m; i++) {
        const float *of = unit + (size_t)i * 2 * G;
        y[i * PARTS + h] += __builtin_convertvector(sum[i * PARTS + h], part) * (of[0] * scale);
        y[i * PARTS + h] += of[1] * least;
      }
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < PARTS; h++) {
    int n = panel * PANEL + h * WIDTH, room = N - n;
    if (room <= 0) continue;
    part b = {};
    if (p->bias) memcpy(&b, p->bias + n, sizeof(float) * (room < WIDTH ? room : WIDTH));
#pragma GCC unroll 12
    for (int i = 0; i < m; i++) put(y[i * PARTS + h] + b, c + (size_t)i * ldc + n, mode, room);
  }
}

/* For each number of rows a function of its own: in a larger one GCC runs out of registers for the sums. */
#define TIMES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#define AT_MOST(most, r) (r <= most ? r : 1)
#define OF_ROWS(r)                                                                                                   \
  static __attribute__((noinline)) void tile_##r(const float *a, int lda, const Product *p, int panel, float *c,     \
                                                 int ldc, int mode, int ahead) {                                     \
    for (int h = 0; h < PARTS; h += SIDE(r))                                                                         \
      tile(AT_MOST(TALL, r), 1, h, SIDE(r), 0, a, lda, p, panel, c, ldc, mode, ahead);                               \
  }                                                                                                                  \
  static __attribute__((noinline)) void tile_half_##r(const float *a, int lda, const Product *p, int panel, float *c, \
                                                      int ldc, int mode, int ahead) {                                \
    for (int h = 0; h < PARTS; h += SIDE(r))                                                                         \
      tile(AT_MOST(TALL, r), 1, h, SIDE(r), 1, a, lda, p, panel, c, ldc, mode, ahead);                               \
  }                                                                                                                  \
  static __attribute__((noinline)) void tile_int8_##r(const uint8_t *a, int lda, const float *unit, const Product *p, \
                                                      int panel, float *c, int ldc, int mode) {                      \
    tile_int8(AT_MOST(TILE, r), a, lda, unit, p, panel, c, ldc, mode);                                               \
  }                                                                                                                  \
  static __attribute__((noinline)) void tile_int4_##r(const uint8_t *a, int lda, const float *unit, const Product *p, \
                                                      int panel, float *c, int ldc, int mode) {                      \
    tile_int4(AT_MOST(TILE, r), a, lda, unit, p, panel, c, ldc, mode);                                               \
  }
TIMES(OF_ROWS)
#define FLOATS(r) tile_##r,
#define HALVES(r) tile_half_##r,
#define BYTES(r) tile_int8_##r,
#define NIBBLES(r) tile_int4_##r,
static void (*const tiles[2][13])(const float *, int, const Product *, int, float *, int, int, int) = {
    {0, TIMES(FLOATS)}, {0, TIMES(HALVES)}};
static void (*const tiles_whole[2][13])(const uint8_t *, int, const float *, const Product *, int, float *, int, int) = {
    {0, TIMES(BYTES)}, {0, TIMES(NIBBLES)}};

/* Rows of the next tile: the last two are about equal. */
INLINE int next_rows(int m, int most) { return m >= 2 * most ? most : m > most ? (m + 1) / 2 : m; }

/* `more`: the next panel comes after it. */
static void panel_of_rows(const float *a, int lda, int m, const Product *p, int panel, float *c, int ldc, int mode,
                          int more) {
  for (int i = 0, rows; i < m; i += rows) {
    rows = next_rows(m - i, TALL);
    const int left = m - i - rows, ahead = !more || left > TALL ? 0 : left ? 1 : i ? 2 : 3;
    tiles[p->h != 0][rows](a + (size_t)i * lda, lda, p, panel, c + (size_t)i * ldc, ldc, mode, ahead);
  }
}

static void panel_of_bytes(const uint8_t *a, int lda, const float *unit, int m, const Product *p, int panel, float *c,
                           int ldc, int mode) {
  const size_t units = p->n ? p->K / GROUP * 2 : 1; /* of a row */
  for (int i = 0, rows; i < m; i += rows) {
    rows = next_rows(m - i, TILE);
    tiles_whole[p->n != 0][rows](a + (size_t)i * lda, lda, unit + i * units, p, panel, c + (size_t)i * ldc, ldc, mode);
  }
}

INLINE vec gelu(vec x) { /* x Φ(x) = max(x, 0) - |x| Φ(-|x|) */
  vec bell, a = larger(x, -x);
  return larger(all(0.0f), x) - a * beyond(x, 1.0f / (1.0f + 0.32f * a), &bell);
}

INLINE vec activation(int kind, vec x) {
  if (kind == 0) return larger(all(0.0f), x);
  if (kind == 1) return gelu(x);
  vec z = inside(kind, x);
  if (kind == 5) z = 2.0f * x;
  vec y = 1.0f / (1.0f + exponential(-z));
  if (kind == 5) return 2.0f * y - 1.0f;
  if (kind != 3) y *= x;
  return y;
}

/* The activation of n numbers in each of m rows, in place; times as many numbers after a gate, if it is one. */
static void activate(int kind, int m, int n, int gate, float *x, int ldx) {
  for (int r = 0; r < m; r++)
    for (int i = 0; i < n; i += L) {
      float *at = x + (size_t)r * ldx + i;
      vec y = activation(kind, load_some(at, n - i));
      if (gate) y *= load_some(at + gate, n - i);
      store_some(at, y, n - i);
    }
}

/* xq = rint(x · (127 / max|x|)) + 128, in bytes; unit = max|x| / 127. The last group of four is filled with zeros. */
static float quantise(const float *x, int K, uint8_t *to) {
  vec top = all(0.0f), nothing = all(0.0f);
  int k = 0;
  for (; k + L <= K; k += L) {
    vec y = load(x + k);
    top = larger(top, larger(y, -y));
    nothing += y - y; /* unless it is no number */
  }
  float most = largest(top) + total(nothing);
  for (; k < K; k++)
    if (!(fabsf(x[k]) <= most) && most == most) most = fabsf(x[k]); /* what is no number stays */
  if (!(most < INFINITY)) {
    memset(to, 128, (K + 3) / 4 * 4);
    return NAN; /* damage shows */
  }
  float factor = most < 0x1p-120f ? 0.0f : 127.0f / most; /* as regard/core/quantised.py has it */
  for (k = 0; k < K; k++) to[k] = (uint8_t)((int32_t)rintf(x[k] * factor) + 128);
  for (; k % 4; k++) to[k] = 128;
  return most / 127.0f;
}

/* The same of each group, in signed bytes; of each the unit, and this times their sum. */
static void quantise_groups(const float *x, int K, uint8_t *to, float *unit) {
  for (int k = 0; k < K; k += GROUP, unit += 2) {
    int32_t sum = 0;
    unit[0] = quantise(x + k, GROUP, to + k);
    for (int i = k; i < k + GROUP; i++) sum += to[i] - 128, to[i] ^= 128;
    unit[1] = unit[0] * sum;
  }
}

typedef struct {
  const float *a;
  const uint8_t *q;
  const float *unit;
  int lda, m, ldc, mode;
  const Product *p;
  float *c;
} Work;

/* Part i of n of a product: some of its panels. */
static void some_panels(void *about, int i, int n) {
  const Work w = *(const Work *)about;
  int64_t panels = (w.p->N + PANEL - 1) / PANEL;
  int first = panels * i / n, end = panels * (i + 1) / n, j = first, mode = w.mode < ACTIVATE ? w.mode : SET;
  if (w.q)
    for (; j < end; j++) panel_of_bytes(w.q, w.lda, w.unit, w.m, w.p, j, w.c, w.ldc, mode);
  /* Few rows: several panels at once, for a sum must wait for its last addition. */
  else if (w.m == 1 && w.p->h)
    for (; j + 4 <= end; j += 4) tile(1, 4, 0, PARTS, 1, w.a, w.lda, w.p, j, w.c, w.ldc, mode, 0);
  else if (w.m == 1)
    for (; j + 4 <= end; j += 4) tile(1, 4, 0, PARTS, 0, w.a, w.lda, w.p, j, w.c, w.ldc, mode, 0);
  else if (w.m == 2 && w.p->h)
    for (; j + 2 <= end; j += 2) tile(2, 2, 0, PARTS, 1, w.a, w.lda, w.p, j, w.c, w.ldc, mode, 0);
  else if (w.m == 2)
    for (; j + 2 <= end; j += 2) tile(2, 2, 0, PARTS, 0, w.a, w.lda, w.p, j, w.c, w.ldc, mode, 0);
  for (; j < end; j++) panel_of_rows(w.a, w.lda, w.m, w.p, j, w.c, w.ldc, mode, j + 1 < end);
  int columns = (end * PANEL < w.p->N ? end * PANEL : w.p->N) - first * PANEL;
  if (w.mode >= ACTIVATE) activate(w.mode - ACTIVATE, w.m, columns, 0, w.c + first * PANEL, w.ldc);
}

#define SHARED 200000 /* multiplications that are worth a helper's attention */
#define PIECES_OF(threads) (4 * (threads)) /* into which work is cut for them, at most */

/* C = A W + b for m rows, or as `mode` says, ACTIVATE plus the number of an activation. `room` holds m rows
   of bytes where the weights are whole numbers, and floats: one for a row of int8, two for a group of int4. */
static void product(Team *team, const float *a, int lda, int m, const Product *p, float *c, int ldc, int mode,
                    void *room) {
  Work w = {a, 0, 0, lda, m, ldc, mode, p, c};
  if (p->q) {
    float *unit = room;
    uint8_t *q = (uint8_t *)(unit + m);
    w.q = q, w.unit = unit, w.lda = (p->K + 3) / 4 * 4;
    for (int i = 0; i < m; i++) unit[i] = quantise(a + (size_t)i * lda, p->K, q + (size_t)i * w.lda);
  }
  if (p->n) {
    const size_t units = p->K / GROUP * 2;
    float *unit = room;
    uint8_t *q = (uint8_t *)(unit + m * units);
    w.q = q, w.unit = unit, w.lda = p->K;
    for (int i = 0; i < m; i++) quantise_groups(a + (size_t)i * lda, p->K, q + (size_t)i * p->K, unit + i * units);
  }
  if (!team || team->threads == 1 || (int64_t)p->K * p->N * m < SHARED) {
    some_panels(&w, 0, 1);
    return;
  }
  int pieces = (p->N + 4 * PANEL - 1) / (4 * PANEL);
  if (m > 2) pieces = (pieces + team->threads - 1) / team->threads * team->threads; /* as many for each of them */
  together(team, some_panels, &w, pieces < PIECES_OF(team->threads) ? pieces : PIECES_OF(team->threads));
}

/* ---------------------------------------------------------------------------------------------- between products */

static void normalise(const Norm *norm, const float *x, int d, float *y) {
  vec s = all(0.0f), squares = all(0.0f);
  float mean = 0.0f, tail = 0.0f;
  int i;
  if (norm->bias) {
    for (i = 0; i + L <= d; i += L) s += load(x + i);
    for (; i < d; i++) tail += x[i];
    mean = (total(s) + tail) / d;
  }
  for (i = 0, tail = 0.0f; i + L <= d; i += L) {
    vec away = load(x + i) - mean;
    squares += away * away;
  }
  for (; i < d; i++) tail += (x[i] - mean) * (x[i] - mean);
  float factor = 1.0f / sqrtf((total(squares) + tail) / d + norm->eps);
  if (norm->bias)
    for (i = 0; i < d; i++) y[i] = (x[i] - mean) * factor * norm->gain[i] + norm->bias[i];
  else
    for (i = 0; i < d; i++) y[i] = x[i] * factor * norm->gain[i];
}

static void normalise_rows(const Model *M, const Norm *norm, const float *x, int m, float *y) {
  for (int i = 0; i < m; i++) normalise(norm, x + (size_t)i * M->d, M->d, y + (size_t)i * M->d);
}

/* Column j of a product, times a factor. */
static void column(const Product *p, int32_t j, float factor, float *x) {
  const size_t panel = j / PANEL, at = j % PANEL, K = p->K, groups = (K + 3) / 4;
  if (p->w)
    for (size_t k = 0; k < K; k++) x[k] = p->w[(panel * K + k) * PANEL + at] * factor;
  else if (p->h)
    for (size_t k = 0; k < K; k++) x[k] = widened_one(p->h[(panel * K + k) * PANEL + at]) * factor;
  else
    for (size_t k = 0; k < K; k++)
      x[k] = p->q[((panel * groups + k / 4) * PANEL + at) * 4 + k % 4] * p->scale[j] * factor;
}

static void embed(const Model *M, const Embedding *e, int32_t token, int32_t position, int32_t segment, float *x) {
  const int d = e->width;
  if (e->table)
    for (int i = 0; i < d; i++) x[i] = e->table[(size_t)token * d + i] * e->factor;
  else if (e->h)
    for (int i = 0; i < d; i++) x[i] = widened_one(e->h[(size_t)token * d + i]) * e->factor;
  else if (e->q)
    for (int i = 0; i < d; i++) x[i] = e->q[(size_t)token * d + i] * e->scale[token] * e->factor;
  else
    column(&M->logits, token, e->factor, x);
  if (e->positions)
    for (int i = 0; i < d; i++) x[i] += e->positions[(size_t)position * d + i];
  if (e->segments)
    for (int i = 0; i < d; i++) x[i] += e->segments[(size_t)segment * d + i];
  if (e->norm.gain) normalise(&e->norm, x, d, x);
}

/* One row of S scores becomes weights: the first n of them; the others, and the rest of the last vector, nothing. */
static void softmax(float *s, int n, int S) {
  int padded = (S + L - 1) / L * L;
  for (int i = n; i < padded; i++) s[i] = -INFINITY;
  vec top = load(s);
  for (int i = L; i < padded; i += L) top = larger(load(s + i), top);
  float most = largest(top);
  vec sum = all(0.0f);
  for (int i = 0; i < padded; i += L) {
    vec e = exponential(load(s + i) - most);
    store(s + i, e);
    sum += e;
  }
  float share = 1.0f / total(sum);
  for (int i = 0; i < padded; i += L) store(s + i, load(s + i) * share);
}

/* Queries that are answered together, for each reading of a key or a value. */
#define QUERIES 4

/* Σ weight[s] · value s for some rows of weights, for n vectors of each value (both constants, at most 8 together); a
   value lies at `cell`, or else in order. The next row's weights lie `padded` further, what it gets lies `next`. */
INLINE void mix(int rows, int n, const float *weight, int padded, const float *values, size_t stride,
                const int32_t *cell, int S, float *out, int next) {
  vec even[8], odd[8];
#pragma GCC unroll 8
  for (int i = 0; i < rows * n; i++) even[i] = odd[i] = all(0.0f);
  int s = 0;
  for (; s + 2 <= S; s += 2) {
    const float *a = values + (cell ? cell[s] : s) * stride, *b = values + (cell ? cell[s + 1] : s + 1) * stride;
#pragma GCC unroll 4
    for (int j = 0; j < n; j++)
#pragma GCC unroll 4
      for (int r = 0; r < rows; r++) {
        even[r * n + j] += weight[r * padded + s] * load(a + j * L);
        odd[r * n + j] += weight[r * padded + s + 1] * load(b + j * L);
      }
  }
  if (s < S)
#pragma GCC unroll 4
    for (int j = 0; j < n; j++)
#pragma GCC unroll 4
      for (int r = 0; r < rows; r++)
        even[r * n + j] += weight[r * padded + s] * load(values + (cell ? cell[s] : s) * stride + j * L);
#pragma GCC unroll 4
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
    for (int j = 0; j < n; j++) store(out + r * next + j * L, even[r * n + j] + odd[r * n + j]);
}

INLINE void mix_one(int d_v, const float *weight, const float *values, size_t stride, const int32_t *cell, int S,
                    float *out) {
  for (int i = 0; i < d_v; i += 4 * L)
    switch ((d_v - i) / L) {
      case 1: mix(1, 1, weight, 0, values + i, stride, cell, S, out + i, 0); break;
      case 2: mix(1, 2, weight, 0, values + i, stride, cell, S, out + i, 0); break;
      case 3: mix(1, 3, weight, 0, values + i, stride, cell, S, out + i, 0); break;
      default: mix(1, 4, weight, 0, values + i, stride, cell, S, out + i, 0);
    }
}

/* Some queries (a constant) of a head, `stride` apart, over S keys that lie as (d_k, padded S), and values `apart`. The
   first sees `seen` of them; and if that is not all, each one after it a key more. */
INLINE void attend_rows(int rows, const Model *M, const float *q, int stride, const float *keys, const float *values,
                        int apart, int S, int seen, float *out, int next, float *scores) {
  int padded = (S + L - 1) / L * L, i = 0;
  for (int s = 0; s < padded; s += L) {
    vec sum[4 * QUERIES];
#pragma GCC unroll 16
    for (int j = 0; j < 4 * rows; j++) sum[j] = all(0.0f);
    for (int k = 0; k < M->d_k; k += 4)
#pragma GCC unroll 4
      for (int j = 0; j < 4; j++) {
        vec key = load(keys + (size_t)(k + j) * padded + s);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) sum[4 * r + j] += q[(size_t)r * stride + k + j] * key;
      }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
      const vec *x = sum + 4 * r;
      store(scores + r * padded + s, ((x[0] + x[1]) + (x[2] + x[3])) * M->score_scale);
    }
  }
  for (int r = 0; r < rows; r++) softmax(scores + r * padded, seen + r < S ? seen + r : S, S);
  if (rows == 1) {
    mix_one(M->d_v, scores, values, apart, 0, S, out);
    return;
  }
  for (; i + 2 * L <= M->d_v; i += 2 * L) mix(rows, 2, scores, padded, values + i, apart, 0, S, out + i, next);
  if (i < M->d_v) mix(rows, 1, scores, padded, values + i, apart, 0, S, out + i, next);
}

/* One query q (H · d_k) over S keys that lie as (G, d_k, padded S), and values (S, G · d_v) with a stride. */
static void attend_fixed(const Model *M, Heads a, const float *q, const float *keys, const float *values, int stride,
                         int S, float *out, float *scores) {
  int share = a.heads / a.kv_heads, padded = (S + L - 1) / L * L;
  for (int h = 0; h < a.heads; h++)
    attend_rows(1, M, q + h * M->d_k, 0, keys + (size_t)(h / share) * M->d_k * padded, values + h / share * M->d_v,
                stride, S, S, out + h * M->d_v, 0, scores);
}

/* One query of a head over T cells of a cache: cell[t] says where the key and the value of position t lie. */
static void attend_cells(const Model *M, const float *q, const float *keys, const float *values, const int32_t *cell,
                         int T, float *out, float *scores) {
  size_t wk = M->kv_heads * M->d_k, wv = M->kv_heads * M->d_v;
  for (int t = 0; t < T; t += L) {
    vec x[L];
#pragma GCC unroll 16
    for (int j = 0; j < L; j++) {
      x[j] = all(0.0f);
      if (t + j >= T) continue;
      const float *k = keys + cell[t + j] * wk;
      for (int i = 0; i < M->d_k; i += L) x[j] += load(q + i) * load(k + i);
    }
    store(scores + t, sums(x) * M->score_scale);
  }
  softmax(scores, T, T);
  mix_one(M->d_v, scores, values, wv, cell, T, out);
}

/* QUERIES of them, N apart, of which the first sees T cells and each one after it a cell more: the same, to the bit. */
static void attend_together(const Model *M, const float *q, int N, const float *keys, const float *values,
                            const int32_t *cell, int T, float *out, int next, float *scores, int padded) {
  size_t wk = M->kv_heads * M->d_k, wv = M->kv_heads * M->d_v;
  const int S = T + QUERIES - 1;
  for (int t = 0; t < S; t += QUERIES) {
    vec x[L];
    const float *k[QUERIES];
#pragma GCC unroll 16
    for (int i = 0; i < L; i++) x[i] = all(0.0f);
    for (int j = 0; j < QUERIES; j++) k[j] = keys + cell[t + j < S ? t + j : S - 1] * wk;
    for (int i = 0; i < M->d_k; i += L)
#pragma GCC unroll 4
      for (int j = 0; j < QUERIES; j++)
#pragma GCC unroll 4
        for (int r = 0; r < QUERIES; r++) x[r * QUERIES + j] += load(q + (size_t)r * N + i) * load(k[j] + i);
    float score[L];
    store(score, sums(x) * M->score_scale);
    for (int r = 0; r < QUERIES; r++) memcpy(scores + r * padded + t, score + r * QUERIES, sizeof(float) * QUERIES);
  }
  for (int r = 0; r < QUERIES; r++) softmax(scores + r * padded, T + r, S);
  int i = 0;
  for (; i + 2 * L <= M->d_v; i += 2 * L) mix(QUERIES, 2, scores, padded, values + i, wv, cell, S, out + i, next);
  if (i < M->d_v) mix(QUERIES, 1, scores, padded, values + i, wv, cell, S, out + i, next);
}

/* Keys (S, width = G · d_k) with a stride -> (G, d_k, padded S), zeros at the end. */
static void transpose_keys(int width, const float *from, int stride, int S, float *to) {
  int padded = (S + L - 1) / L * L;
  for (int i = 0; i < width; i++) {
    for (int s = 0; s < S; s++) to[(size_t)i * padded + s] = from[(size_t)s * stride + i];
    for (int s = S; s < padded; s++) to[(size_t)i * padded + s] = 0.0f;
  }
}

/* What is read of a text, or of a sound, that is LONG lies in panels, as the weights of a product: for each head keys
   (d_k, S) and values (S, d_v). Then many queries are answered together, and one reads what lies in a row. */
#define LONG 256
#define MANY 24 /* of them */
#define PANELS(n) (((size_t)(n) + PANEL - 1) / PANEL * PANEL)

static size_t room_of_head(const Model *M, int S) {
  return M->d_k * PANELS(S) + PANELS(M->d_v) * S;
}

/* Keys times the scale of scores, and values, of one head, both `stride` apart -> in panels. */
static void lay_head(const Model *M, const float *keys, const float *values, int stride, int S, float *to) {
  for (int s = 0; s < (int)PANELS(S); s++) {
    float *at = to + (size_t)(s / PANEL) * M->d_k * PANEL + s % PANEL;
    for (int i = 0; i < M->d_k; i++) at[i * PANEL] = s < S ? keys[(size_t)s * stride + i] * M->score_scale : 0.0f;
  }
  to += M->d_k * PANELS(S);
  for (int i = 0; i < (int)PANELS(M->d_v); i += L)
    for (int s = 0; s < S; s++) {
      vec v = i < M->d_v ? load(values + (size_t)s * stride + i) : all(0.0f);
      store(to + ((size_t)(i / PANEL) * S + s) * PANEL + i % PANEL, v);
    }
}

/* Some queries of a head, MANY at most, `stride` apart, over S keys and values in panels. */
static void attend_long(const Model *M, const float *q, int stride, int rows, const float *head, int S, float *out,
                        int next, float *scores) {
  const int padded = (S + L - 1) / L * L;
  Product keys = {.K = M->d_k, .N = S, .w = head}, values = {.K = S, .N = M->d_v, .w = head + M->d_k * PANELS(S)};
  some_panels(&(Work){.a = q, .lda = stride, .m = rows, .ldc = padded, .mode = SET, .p = &keys, .c = scores}, 0, 1);
  for (int r = 0; r < rows; r++) softmax(scores + (size_t)r * padded, S, S);
  some_panels(&(Work){.a = scores, .lda = padded, .m = rows, .ldc = next, .mode = SET, .p = &values, .c = out}, 0, 1);
}

/* RoPE: each of some heads, turned by the angles of its position. */
static void turn(const Model *M, float *x, int heads, const float *by) {
  const int half = M->turned / 2;
  for (int h = 0; h < heads; h++, x += M->d_k)
    for (int i = 0; i < half; i++) {
      float a = x[i], b = x[half + i];
      x[i] = a * by[i] - b * by[half + i], x[half + i] = b * by[i] + a * by[half + i];
    }
}

/* ---------------------------------------------------------------------------------------------- layers */

/* Room to work, for m rows; see `room` below for its size. */
typedef struct {
  Team *team;
  float *x, *y, *wide, *heads, *scores, *keys, *low;
  int32_t *at;
  const Adapter **of; /* (m,) what is added for each row; absent: for none */
  char *bytes;
  size_t wider, more, rank; /* numbers in a row of `wide`, bytes in one of `bytes`, numbers in one of `low` */
} Room;

/* A product of layer l, and what is added to it: for each run of rows of one adapter, which lies there at `place`. No
   row meets another here, either, and the first product is the same whoever adds to it. */
static void product_of(const Room *w, const Product *p, int l, int decoder, size_t place, const float *a, int lda,
                       int m, float *c, int ldc, int mode) {
  product(w->team, a, lda, m, p, c, ldc, !w->of || mode == ADD ? mode : SET, w->bytes);
  if (!w->of) return;
  for (int i = 0, end; i < m; i = end) {
    const Adapter *of = w->of[i];
    for (end = i + 1; end < m && w->of[end] == of; end++) {}
    if (!of) continue;
    const Low *low = (const Low *)((const char *)((decoder ? of->decoder : of->encoder) + l) + place);
    if (!low->a.N) continue;
    product(w->team, a + (size_t)i * lda, lda, end - i, &low->a, w->low, low->a.N, SET, 0);
    product(w->team, w->low, low->a.N, end - i, &low->b, c + (size_t)i * ldc, ldc, ADD, 0);
  }
  if (mode >= RELU) activate(mode == RELU ? 0 : mode - ACTIVATE, m, p->N, 0, c, ldc);
}

/* The sub-layer's input: x itself, or normalised before (pre-norm). */
static const float *enter(const Model *M, const Norm *norm, const Room *w, int m) {
  if (!M->pre) return w->x;
  normalise_rows(M, norm, w->x, m, w->y);
  return w->y;
}

/* x has grown by the sub-layer's output: normalise it now if the norm comes after. */
static void leave(const Model *M, const Norm *norm, const Room *w, int m) {
  if (!M->pre) normalise_rows(M, norm, w->x, m, w->x);
}

static void feed_forward(const Model *M, int decoder, int l, const Room *w, int m) {
  const Layer *layer = (decoder ? M->decoder : M->encoder) + l;
  const float *in = enter(M, &layer->feed_forward_norm, w, m);
  int N = layer->inner.N, K = layer->outer.K, kind = layer->activation;
  int mode = N > K ? SET : kind ? ACTIVATE + kind : RELU;
  product_of(w, &layer->inner, l, decoder, offsetof(Lows, inner), in, M->d, m, w->wide, N, mode);
  if (N > K) activate(kind, m, K, K, w->wide, N);
  product_of(w, &layer->outer, l, decoder, offsetof(Lows, outer), w->wide, N, m, w->x, M->d, ADD);
  leave(M, &layer->feed_forward_norm, w, m);
}

static size_t rounded(size_t n) { return (n + 63) / 64 * 64; }

static size_t larger_of(size_t a, size_t b) { return a > b ? a : b; }

/* `rank`: columns that an A has, at most. */
static size_t lay(const Model *M, int m, int longest, int threads, int rank, char *base, Room *w) {
  size_t wide = M->heads * M->d_k + M->kv_heads * (M->d_k + M->d_v), widest = M->heads * M->d_v, at = 0, padded;
  padded = (longest + L - 1) / L * L;
  wide = larger_of(larger_of(wide, (M->gated ? 2 : 1) * (size_t)M->d_ff), larger_of(M->source.width, M->head.inner.N));
  widest = larger_of(larger_of(widest, larger_of(M->d, M->d_ff)), larger_of(M->source.width, M->head.inner.N));
#define TAKE(field, size) w->field = (void *)(base + at), at += rounded(size)
  TAKE(x, 4 * (size_t)m * M->d);
  TAKE(y, 4 * (size_t)m * M->d);
  TAKE(wide, 4 * (size_t)m * wide);
  TAKE(heads, 4 * (size_t)m * M->heads * M->d_v);
  TAKE(scores, 4 * PIECES_OF(threads) * (longest < LONG ? QUERIES : MANY) * padded);
  TAKE(keys, 4 * larger_of(PIECES_OF(threads) * (size_t)M->d_k * padded,
                           longest < LONG ? 0 : M->kv_heads * room_of_head(M, longest)));
  TAKE(low, 4 * (size_t)m * rank);
  TAKE(at, 4 * (size_t)m);
  TAKE(of, rank ? sizeof(Adapter *) * m : 0);
  w->wider = wide, w->more = 4 + (widest + 3) / 4 * 4 + widest / GROUP * 8, w->rank = rank;
  TAKE(bytes, (size_t)m * w->more);
#undef TAKE
  if (!rank) w->of = 0;
  return at;
}

/* Bytes that `encode`, `decode` and `read` need to work on m rows whose sentences have at most `longest` tokens, with
   adapters of this rank at most; 0: with none. */
int64_t room(const Model *M, int32_t m, int32_t longest, int32_t threads, int32_t rank) {
  Room w;
  return lay(M, m, longest, threads, rank, 0, &w);
}

/* Each row of n texts has the adapter of its text. */
static void tell_rows(const Adapter *const *adapters, int n, const int32_t *begins, const Room *w) {
  for (int b = 0, r = 0; w->of && b < n; b++)
    for (int s = begins[b]; s < begins[b + 1]; s++) w->of[r++] = adapters[b];
}

/* Self-attention of whole texts, which lie one after the other: text b has the rows begins[b] to begins[b + 1]. */
typedef struct {
  const Model *M;
  Heads heads;
  int n, N, padded;
  const int32_t *begins;
  const float *qkv;
  float *out, *keys, *scores;
} Whole;

/* Part i of n: some heads of some texts, or where these are few, parts of heads: some of their queries. */
static void some_texts(void *about, int i, int n) {
  const Whole a = *(const Whole *)about;
  const int H = a.heads.heads, d_k = a.M->d_k, d_v = a.M->d_v, Q = H * d_k, K = a.heads.kv_heads * d_k, V = H * d_v;
  float *keys = a.keys + (size_t)i * d_k * a.padded, *scores = a.scores + (size_t)i * QUERIES * a.padded;
  const int parts = a.n * H < n / 2 ? 2 : 1; /* then there are less than two heads for each thread */
  int64_t item = (int64_t)a.n * H * parts * i / n, end = (int64_t)a.n * H * parts * (i + 1) / n;
  for (; item < end; item++) {
    int b = item / parts / H, h = item / parts % H, g = h / (H / a.heads.kv_heads), S = a.begins[b + 1] - a.begins[b];
    int half = parts == 1 ? S : S / 2 / QUERIES * QUERIES, t = item % parts * half, last = item % parts ? S : half;
    if (S >= LONG && !a.M->causal) continue;
    size_t first = a.begins[b] - a.begins[0];
    const float *q = a.qkv + first * a.N, *v = q + Q + K + g * d_v;
    float *out = a.out + first * V + h * d_v;
    transpose_keys(d_k, q + Q + g * d_k, a.N, S, keys);
#define SEEN (a.M->causal ? t + 1 : S)
    for (q += h * d_k; t + QUERIES <= last; t += QUERIES)
      attend_rows(QUERIES, a.M, q + (size_t)t * a.N, a.N, keys, v, a.N, S, SEEN, out + (size_t)t * V, V, scores);
    for (; t < last; t++)
      attend_rows(1, a.M, q + (size_t)t * a.N, 0, keys, v, a.N, S, SEEN, out + (size_t)t * V, 0, scores);
#undef SEEN
  }
}

/* Of one that is long, the first of `begins`: part i of n of its heads, in panels; */
static void some_panelled(void *about, int i, int n) {
  const Whole a = *(const Whole *)about;
  const int G = a.heads.kv_heads, d_k = a.M->d_k, S = a.begins[1] - a.begins[0];
  const float *keys = a.qkv + a.heads.heads * d_k, *values = keys + G * d_k;
  for (int g = G * i / n; g < G * (i + 1) / n; g++)
    lay_head(a.M, keys + g * d_k, values + g * a.M->d_v, a.N, S, a.keys + g * room_of_head(a.M, S));
}

/* and part i of n of what they answer. */
static void some_long(void *about, int i, int n) {
  const Whole a = *(const Whole *)about;
  const int H = a.heads.heads, S = a.begins[1] - a.begins[0], V = H * a.M->d_v;
  const int64_t blocks = (S + MANY - 1) / MANY, end = H * blocks * (i + 1) / n;
  for (int64_t item = H * blocks * i / n; item < end; item++) {
    int h = item / blocks, t = item % blocks * MANY, rows = S - t < MANY ? S - t : MANY;
    attend_long(a.M, a.qkv + (size_t)t * a.N + h * a.M->d_k, a.N, rows,
                a.keys + h / (H / a.heads.kv_heads) * room_of_head(a.M, S), S, a.out + (size_t)t * V + h * a.M->d_v, V,
                a.scores + (size_t)i * MANY * a.padded);
  }
}

static void shared_by(Team *team, void (*job)(void *, int, int), void *about, int64_t work, int pieces) {
  if (!team || team->threads == 1 || work < SHARED || pieces < 2)
    job(about, 0, 1);
  else
    together(team, job, about, pieces);
}

static void attend_whole(Team *team, Whole a) {
  const int pieces = team ? PIECES_OF(team->threads) : 1, each = a.heads.heads * (a.M->d_k + a.M->d_v);
  int64_t seen = 0;
  for (int b = 0; b < a.n; b++) seen += (int64_t)(a.begins[b + 1] - a.begins[b]) * (a.begins[b + 1] - a.begins[b]);
  shared_by(team, some_texts, &a, seen * each, pieces);
  for (int b = 0; b < a.n; b++) {
    const int S = a.begins[b + 1] - a.begins[b], first = a.begins[b] - a.begins[0];
    if (S < LONG || a.M->causal) continue;
    Whole one = {a.M, a.heads, 1, a.N, a.padded, a.begins + b, a.qkv + (size_t)first * a.N,
                 a.out + (size_t)first * a.heads.heads * a.M->d_v, a.keys, a.scores};
    shared_by(team, some_panelled, &one, SHARED, a.heads.kv_heads);
    shared_by(team, some_long, &one, SHARED, pieces);
  }
}

/* What no row sees of another is done for some rows after the other: what lies between two products stays near. Where
   there are ENOUGH for each of them, threads share the rows, and not each product. */
#define BLOCK 192
#define ENOUGH 64
typedef struct {
  const Model *M;
  const Room *w;
  int l, m;
} Layered;

static Room rows_from(const Layered *a, int first, int n) {
  Room w = *a->w;
  if (n > 1) w.team = 0;
  w.x += (size_t)first * a->M->d, w.y += (size_t)first * a->M->d, w.wide += first * w.wider;
  w.heads += (size_t)first * a->M->heads * a->M->d_v, w.low += first * w.rank, w.bytes += first * w.more;
  if (w.of) w.of += first;
  return w;
}

static void in_blocks(void (*job)(void *, int, int), Layered *a) {
  const int threads = a->w->team ? a->w->team->threads : 1;
  int pieces = a->m < 2 * BLOCK ? 1 : (a->m + BLOCK - 1) / BLOCK;
  if (a->m >= ENOUGH * threads) pieces = (pieces + threads - 1) / threads * threads; /* as many for each of them */
  if (pieces > 1 && threads > 1)
    together(a->w->team, job, a, pieces);
  else
    for (int i = 0; i < pieces; i++) job(a, i, pieces);
}

static void before_attention(void *about, int i, int n) {
  const Layered *a = about;
  const Layer *layer = a->M->encoder + a->l;
  const int first = (int64_t)a->m * i / n, m = (int64_t)a->m * (i + 1) / n - first, N = layer->query_key_value.N;
  const Room w = rows_from(a, first, n);
  const float *in = enter(a->M, &layer->attention_norm, &w, m);
  product_of(&w, &layer->query_key_value, a->l, 0, offsetof(Lows, query_key_value), in, a->M->d, m,
             a->w->wide + (size_t)first * N, N, SET);
}

static void after_attention(void *about, int i, int n) {
  const Layered *a = about;
  const Layer *layer = a->M->encoder + a->l;
  const int first = (int64_t)a->m * i / n, m = (int64_t)a->m * (i + 1) / n - first, V = layer->own.heads * a->M->d_v;
  const Room w = rows_from(a, first, n);
  product_of(&w, &layer->output, a->l, 0, offsetof(Lows, output), a->w->heads + (size_t)first * V, V, m, w.x, a->M->d,
             ADD);
  leave(a->M, &layer->attention_norm, &w, m);
  feed_forward(a->M, 0, a->l, &w, m);
}

/* The layers of the encoder on n texts, in w->x; if `only` the first (1) or the last (2) row of each is asked for, the last
   layer makes those and no others, a row for each text. */
static void think(const Model *M, int n, const int32_t *begins, int longest, int only, const Room *w) {
  int m = begins[n] - begins[0];
  for (int l = 0; l < M->encoder_layers; l++) {
    const Layer *layer = M->encoder + l;
    const int N = layer->query_key_value.N, padded = (longest + L - 1) / L * L;
    Layered a = {M, w, l, m};
    in_blocks(before_attention, &a);
    for (int b = 0, r = 0; M->turned && b < n; b++)
      for (int s = 0; s < begins[b + 1] - begins[b]; s++, r++)
        turn(M, w->wide + (size_t)r * N, layer->own.heads + layer->own.kv_heads, M->turns + (size_t)s * M->turned);
    if (layer->own.heads)
      attend_whole(w->team, (Whole){M, layer->own, n, N, padded, begins, w->wide, w->heads, w->keys, w->scores});
    if (only && l == M->encoder_layers - 1) {
      const size_t d = M->d, V = layer->own.heads * M->d_v;
      for (size_t b = 0; b < (size_t)n; b++) {
        const size_t r = only == 1 ? begins[b] - begins[0] : begins[b + 1] - begins[0] - 1;
        memmove(w->x + b * d, w->x + r * d, sizeof(float) * d);
        memmove(w->heads + b * V, w->heads + r * V, sizeof(float) * V);
      }
      a.m = m = n;
    }
    in_blocks(after_attention, &a);
  }
  if (M->encoder_norm.gain) normalise_rows(M, &M->encoder_norm, w->x, m, w->x);
}

/* The encoder on n texts -> w->x. Without `segments` all is the first. What no embedding has made comes as vectors:
   `given` (m, d), in place of tokens. */
static void understand(const Model *M, int n, const int32_t *begins, const int32_t *tokens, const int32_t *segments,
                       const float *given, int longest, int only, const Room *w) {
  const Embedding *e = &M->source;
  const int m = begins[n] - begins[0];
  float *x = e->widen.N ? w->wide : w->x;
  if (given) memcpy(w->x, given, sizeof(float) * m * M->d);
  for (int b = 0, r = 0; !given && b < n; b++)
    for (int s = 0; s < begins[b + 1] - begins[b]; s++, r++)
      embed(M, e, tokens[r], s, segments ? segments[r] : 0, x + (size_t)r * e->width);
  if (e->widen.N) product(w->team, x, e->width, m, &e->widen, w->x, M->d, SET, w->bytes);
  think(M, n, begins, longest, only, w);
}

/* Numbers that a decoder layer may know of a sentence of S tokens. */
static size_t room_of(const Model *M, int S) {
  size_t padded = (S + L - 1) / L * L;
  if (S >= LONG) return M->kv_heads * room_of_head(M, S);
  return M->kv_heads * (M->d_k * padded + M->d_v * (size_t)S);
}

int64_t memory_size(const Model *M, int32_t S) { return M->decoder_layers * room_of(M, S); }

/* What layer l of the decoder is to read of the encoder's output. */
static void to_be_read(void *about, int i, int n) {
  const Layered *a = about;
  const Product *p = &a->M->decoder[a->l].key_value;
  const int first = (int64_t)a->m * i / n, m = (int64_t)a->m * (i + 1) / n - first;
  const Room w = rows_from(a, first, n);
  product_of(&w, p, a->l, 1, offsetof(Lows, key_value), w.x, a->M->d, m, a->w->wide + (size_t)first * p->N, p->N, SET);
}

/* -> the memory of each of n texts. */
static void memorise(const Model *M, int n, const int32_t *begins, float *const *memory, const Room *w) {
  for (int l = 0; l < M->decoder_layers; l++) {
    int G = M->decoder[l].read.kv_heads, wk = G * M->d_k, wv = G * M->d_v;
    in_blocks(to_be_read, &(Layered){M, w, l, begins[n]});
    for (int b = 0; b < n; b++) {
      int S = begins[b + 1] - begins[b], padded = (S + L - 1) / L * L;
      float *from = w->wide + (size_t)begins[b] * (wk + wv), *to = memory[b] + l * room_of(M, S);
      if (S >= LONG) { /* as `some_panelled` has them, behind no queries */
        if (G) shared_by(w->team, some_panelled, &(Whole){M, {0, G}, 1, wk + wv, padded, begins + b, from, 0, to, 0}, SHARED, G);
        continue;
      }
      transpose_keys(wk, from, wk + wv, S, to);
      to += (size_t)wk * padded;
      for (int s = 0; s < S; s++)
        memcpy(to + (size_t)s * wv, from + (size_t)s * (wk + wv) + wk, sizeof(float) * wv);
    }
  }
}

/* Read n sentences: tokens one sentence after the other, or vectors in their place, where each begins and the last one
   ends, and for each of them where its memory goes: for every decoder layer the keys (G, d_k, padded S) and then the
   values (S, G · d_v) of the attention to it, in room for those that have the most heads. None has more than `longest`
   tokens. Where there is a rank, each has an adapter, or none. Returns 0, and does nothing, if a token is none. */
int32_t encode(const Model *M, int32_t n, const int32_t *tokens, const float *given, const int32_t *begins,
               int32_t longest, float *const *memory, int32_t rank, const Adapter *const *adapters, Team *team,
               char *space) {
  Room w = {.team = team};
  const int m = begins[n];
  for (int r = 0; !given && r < m; r++)
    if (tokens[r] < 0 || tokens[r] >= M->source.tokens) return 0;
  lay(M, m, longest, team ? team->threads : 1, rank, space, &w);
  tell_rows(adapters, n, begins, &w);
  understand(M, n, begins, tokens, 0, given, longest, 0, &w);
  memorise(M, n, begins, memory, &w);
  return 1;
}

/* What makes vectors of sound: two convolutions over three frames each, of which the second halves their number. */
typedef struct {
  Product first, second;
  const float *positions; /* (places, d) */
} Ears;

typedef struct {
  Layered all; /* of which m are vectors */
  const Ears *ears;
  const float *frames; /* (frames + 2, bands), silent at both ends */
  float *between;      /* (frames + 2, d) */
  int32_t count;       /* of the frames */
} Heard;

/* Three frames in a row are one row of a product, for they lie side by side. */
static void first_convolution(void *about, int i, int n) {
  const Heard *a = about;
  const Product *p = &a->ears->first;
  const int first = (int64_t)a->count * i / n, m = (int64_t)a->count * (i + 1) / n - first, bands = p->K / 3;
  product(n > 1 ? 0 : a->all.w->team, a->frames + (size_t)first * bands, bands, m, p,
          a->between + (size_t)(first + 1) * p->N, p->N, ACTIVATE + 1, 0);
}

static void second_convolution(void *about, int i, int n) {
  const Heard *a = about;
  const Product *p = &a->ears->second;
  const int first = (int64_t)a->all.m * i / n, end = (int64_t)a->all.m * (i + 1) / n, d = p->N;
  float *x = a->all.w->x;
  product(n > 1 ? 0 : a->all.w->team, a->between + (size_t)2 * first * d, 2 * d, end - first, p, x + (size_t)first * d,
          d, ACTIVATE + 1, 0);
  for (size_t j = (size_t)first * d; j < (size_t)end * d; j++) x[j] += a->ears->positions[j];
}

/* Hear so many frames, half as many vectors -> `states` (vectors, d), what the encoder makes of them, and its memory.
   The space has room for (frames + 2) · d numbers more. */
void hear(const Model *M, const Ears *ears, int32_t count, const float *frames, float *memory, float *states,
          Team *team, char *space) {
  Room w = {.team = team};
  const int32_t S = (count + 1) / 2, begins[2] = {0, S};
  float *between = (float *)(space + lay(M, S, S, team ? team->threads : 1, 0, space, &w));
  memset(between, 0, sizeof(float) * M->d);
  memset(between + (size_t)(count + 1) * M->d, 0, sizeof(float) * M->d);
  Heard a = {{M, &w, 0, S}, ears, frames, between, count};
  in_blocks(first_convolution, &a.all);
  in_blocks(second_convolution, &a.all);
  think(M, 1, begins, S, 0, &w);
  memcpy(states, w.x, sizeof(float) * S * M->d);
  memorise(M, 1, begins, &memory, &w);
}

/* One vector for the S of a text. */
static void pool(int kind, const float *x, int S, int d, float *y) {
  memcpy(y, x + (kind == 2 ? (size_t)(S - 1) * d : 0), sizeof(float) * d);
  if (kind < 3) return;
  for (int s = 1; s < S; s++) {
    x += d;
    if (kind == 3)
      for (int i = 0; i < d; i++) y[i] += x[i];
    else
      for (int i = 0; i < d; i++) y[i] = x[i] > y[i] || x[i] != x[i] ? x[i] : y[i]; /* what is no number stays */
  }
  if (kind == 3)
    for (int i = 0; i < d; i++) y[i] /= S;
}

static void shorten(float *x, int d) {
  vec squares = all(0.0f);
  float tail = 0.0f;
  int i = 0;
  for (; i + L <= d; i += L) squares += load(x + i) * load(x + i);
  for (; i < d; i++) tail += x[i] * x[i];
  float length = sqrtf(total(squares) + tail);
  if (length < 1e-12f) length = 1e-12f;
  for (i = 0; i < d; i++) x[i] /= length;
}

/* What a head says of n texts, of which x has been read -> rows of so many numbers. */
static void say(const Model *M, const Head *h, const Product *last, int n, const int32_t *begins, float *x,
                const Room *w, float *out, int64_t width) {
  int rows = h->pool ? n : begins[n] - begins[0], d = M->d;
  if (h->pool) {
    for (int b = 0; b < n; b++)
      pool(h->pool, x + (size_t)(begins[b] - begins[0]) * d, begins[b + 1] - begins[b], d, w->y + (size_t)b * d);
    x = w->y;
  }
  if (h->inner.N) {
    const int mode = h->activation < 0 ? SET : ACTIVATE + h->activation;
    product(w->team, x, d, rows, &h->inner, w->wide, h->inner.N, mode, w->bytes);
    x = w->wide, d = h->inner.N;
  }
  for (int r = 0; r < rows; r++) {
    if (h->norm.gain) normalise(&h->norm, x + (size_t)r * d, d, x + (size_t)r * d);
    if (h->unit) shorten(x + (size_t)r * d, d);
  }
  if (last->N)
    product(w->team, x, d, rows, last, out, width, SET, w->bytes);
  else
    for (int r = 0; r < rows; r++) memcpy(out + r * width, x + (size_t)r * d, sizeof(float) * d);
}

/* Texts to read, in parts that are read together: part c has the texts parts[c] to parts[c + 1]. */
typedef struct {
  const Model *M;
  int32_t bare, longest, count, rank; /* bare: without the head, 2: of first rows; count: of parts; rank: of adapters */
  const int32_t *parts, *begins, *tokens, *segments;
  const float *given;
  const Adapter *const *adapters; /* of each text, where there is a rank */
  float *out;
  int64_t width; /* of a row of it */
  char *space;
  int64_t each;
  atomic_int next;
} Texts;

static void read_part(const Texts *t, int c, Team *team, char *space) {
  Room w = {.team = team};
  const int32_t *begins = t->begins + t->parts[c];
  const int begin = t->parts[c], first = begins[0], n = t->parts[c + 1] - begin, m = begins[n] - first;
  const Adapter *const *of = t->rank ? t->adapters + begin : 0;
  const int pool = t->bare ? t->bare - 1 : t->M->head.pool, only = of || pool > 2 ? 0 : pool;
  lay(t->M, m, t->longest, team ? team->threads : 1, t->rank, space, &w);
  tell_rows(of, n, begins, &w);
  understand(t->M, n, begins, t->tokens ? t->tokens + first : 0, t->segments ? t->segments + first : 0,
             t->given ? t->given + (size_t)first * t->M->d : 0, t->longest, only, &w);
  if (only) { /* a text is one row now */
    if (t->bare) memcpy(t->out + begin * t->width, w.x, sizeof(float) * n * t->M->d);
    int32_t rows[n + 1];
    for (int b = 0; b <= n; b++) rows[b] = b;
    if (!t->bare) say(t->M, &t->M->head, &t->M->logits, n, rows, w.x, &w, t->out + begin * t->width, t->width);
    return;
  }
  if (t->bare) memcpy(t->out + first * t->width, w.x, sizeof(float) * m * t->M->d);
  for (int b = 0, end; !t->bare && b < n; b = end) { /* texts of one adapter after the other */
    for (end = of ? b + 1 : n; end < n && of[end] == of[b]; end++) {}
    const Adapter *own = of && of[b] && of[b]->own ? of[b] : 0;
    const Head *head = own ? &own->head : &t->M->head;
    say(t->M, head, own ? &own->logits : &t->M->logits, end - b, begins + b,
        w.x + (size_t)(begins[b] - first) * t->M->d, &w, t->out + (head->pool ? begin + b : begins[b]) * t->width,
        t->width);
  }
}

/* Whoever comes takes the next part, and has room number i. */
static void some_parts(void *about, int i, int n) {
  (void)n;
  Texts *t = about;
  for (int c; (c = atomic_fetch_add(&t->next, 1)) < t->count;) read_part(t, c, 0, t->space + i * t->each);
}

/* Read texts: tokens one text after the other, the text of a pair that each is in, or vectors in the place of both, and
   where each text begins and the last one ends; none has more than `longest` tokens. -> `out`, rows of so many numbers:
   what the head says, of each text or of each token, or if `bare` what it reads. Where there is a rank, each text has
   an adapter, or none; all their heads speak of texts, or all of tokens. Several parts are shared by the threads, each
   of which has `each` bytes of the space; of one part they share the products. */
void read_texts(const Model *M, int32_t bare, int32_t count, const int32_t *parts, const int32_t *begins,
                const int32_t *tokens, const int32_t *segments, const float *given, int32_t longest, int32_t rank,
                const Adapter *const *adapters, float *out, int64_t width, Team *team, char *space, int64_t each) {
  Texts t = {M,     bare,     longest, count, rank,  parts, begins, tokens, segments,
             given, adapters, out,     width, space, each,  0};
  if (team && count > 1)
    together(team, some_parts, &t, team->threads);
  else
    for (int c = 0; c < count; c++) read_part(&t, c, team, space);
}

/* Rows of unfinished sentences. A row's past is a list of cells in one pool of keys and values. */
typedef struct {
  int32_t *lengths;        /* (m,) tokens of each row */
  const int32_t *sentence; /* (m,) which sentence it reads */
  int32_t *history;        /* (m, stride) its cells */
  int64_t stride;
  const float *const *memory; /* of each sentence, what `encode` made of it */
  const int32_t *sources;     /* and its length */
  float *keys, *values;       /* (layers, cells, width) */
  int32_t *owner;             /* (cells,) which sentence has a cell */
  int64_t cells;
  const Adapter *const *adapters; /* of each sentence, where there is a rank */
  int64_t rank;
} Rows;

/* Self-attention of m tokens, as `decode` has them. */
typedef struct {
  const Model *M;
  const Rows *rows;
  Heads heads;
  const float *qkv, *keys, *values;
  const int32_t *to, *at;
  int m, N, padded;
  float *out, *scores;
} Attention;

/* Part i of n: some heads of some tokens; of a text, one head of all tokens after the other, for its keys stay near. */
static void some_heads(void *about, int i, int n) {
  const Attention a = *(const Attention *)about;
  const int H = a.heads.heads, share = H / a.heads.kv_heads, V = H * a.M->d_v;
  int64_t item = (int64_t)a.m * H * i / n, end = (int64_t)a.m * H * (i + 1) / n;
  float *scores = a.scores + (size_t)i * QUERIES * a.padded;
  while (item < end) {
    int h = a.to ? item / a.m : item % H, t = a.to ? item % a.m : item / H, r = a.to ? a.to[t] : t;
    const float *q = a.qkv + (size_t)t * a.N + h * a.M->d_k;
    const float *k = a.keys + h / share * a.M->d_k, *v = a.values + h / share * a.M->d_v;
    const int32_t *cell = a.rows->history + r * a.rows->stride;
    float *out = a.out + (size_t)t * V + h * a.M->d_v;
    if (a.to && t + QUERIES <= a.m && item + QUERIES <= end && a.to[t + QUERIES - 1] == r) {
      attend_together(a.M, q, a.N, k, v, cell, a.at[t] + 1, out, V, scores, a.padded);
      item += QUERIES;
    } else {
      attend_cells(a.M, q, k, v, cell, a.at[t] + 1, out, scores);
      item++;
    }
  }
}

static void attend_own(Team *team, Attention a) {
  int64_t seen = 0;
  for (int t = 0; t < a.m; t++) seen += a.at[t] + 1;
  if (!team || team->threads == 1 || seen * a.heads.heads * (a.M->d_k + a.M->d_v) < SHARED)
    some_heads(&a, 0, 1);
  else
    together(team, some_heads, &a, PIECES_OF(team->threads));
}

/* Attention of some tokens to a long source that they share. */
typedef struct {
  const Model *M;
  Heads heads;
  int m, S, padded;
  const float *q, *memory;
  float *out, *scores;
} Memory;

static void some_read(void *about, int i, int n) {
  const Memory a = *(const Memory *)about;
  const int H = a.heads.heads, d_k = a.M->d_k, d_v = a.M->d_v;
  for (int h = H * i / n; h < H * (i + 1) / n; h++)
    attend_long(a.M, a.q + h * d_k, H * d_k, a.m, a.memory + h / (H / a.heads.kv_heads) * room_of_head(a.M, a.S), a.S,
                a.out + h * d_v, H * d_v, a.scores + (size_t)i * MANY * a.padded);
}

/* Append m tokens in the cells given, each to the row that `to` names, or one to each where it is absent; those of a row
   in their order. -> what the last product reads, `features` (m, d); absent: what comes after is not wanted.
   No row has more than `longest` tokens, nor its source. Returns 0, and does nothing, if a token is none.
   A token sees the cells of its row up to its own, so many at once are what one after the other is, to the bit. */
int32_t decode(const Model *M, Rows *rows, int32_t m, const int64_t *tokens, const int32_t *to, const int32_t *cells,
               int32_t longest, float *features, Team *team, char *space) {
  Room w = {.team = team};
  int wk = M->kv_heads * M->d_k, wv = M->kv_heads * M->d_v; /* of a cell */
  int padded = (longest + L - 1) / L * L;
  for (int i = 0; i < m; i++)
    if (tokens[i] < 0 || tokens[i] >= M->target.tokens) return 0;
  lay(M, m, longest, team ? team->threads : 1, rows->rank, space, &w);
  for (int i = 0; i < m; i++) {
    int r = to ? to[i] : i;
    if (w.of) w.of[i] = rows->adapters[rows->sentence[r]];
    w.at[i] = rows->lengths[r]++;
    embed(M, &M->target, tokens[i], w.at[i], 0, w.x + (size_t)i * M->d);
    rows->history[r * rows->stride + w.at[i]] = cells[i];
    rows->owner[cells[i]] = rows->sentence[r];
  }
  for (int l = 0; l < M->decoder_layers; l++) {
    const Layer *layer = M->decoder + l;
    float *k = rows->keys + l * rows->cells * wk, *v = rows->values + l * rows->cells * wv;
    Heads own = layer->own, read = layer->read;
    int N = layer->query_key_value.N, Q = own.heads * M->d_k, K = own.kv_heads * M->d_k, V = own.heads * M->d_v;
    const float *in = enter(M, &layer->attention_norm, &w, m);
    product_of(&w, &layer->query_key_value, l, 1, offsetof(Lows, query_key_value), in, M->d, m, w.wide, N, SET);
    for (int i = 0; own.heads && i < m; i++) {
      float *qkv = w.wide + (size_t)i * N;
      if (M->turned) turn(M, qkv, own.heads + own.kv_heads, M->turns + (size_t)w.at[i] * M->turned);
      memcpy(k + (size_t)cells[i] * wk, qkv + Q, sizeof(float) * K);
      memcpy(v + (size_t)cells[i] * wv, qkv + Q + K, sizeof(float) * own.kv_heads * M->d_v);
    }
    if (!features && l + 1 == M->decoder_layers) return 1;
    if (own.heads)
      attend_own(team, (Attention){M, rows, own, w.wide, k, v, to, w.at, m, N, padded, w.heads, w.scores});
    product_of(&w, &layer->output, l, 1, offsetof(Lows, output), w.heads, V, m, w.x, M->d, ADD);
    leave(M, &layer->attention_norm, &w, m);
    if (layer->cross_output.N) {
      in = enter(M, &layer->cross_norm, &w, m);
      Q = read.heads * M->d_k, K = read.kv_heads * M->d_k, V = read.heads * M->d_v;
      product_of(&w, &layer->query, l, 1, offsetof(Lows, query), in, M->d, m, w.wide, Q, SET);
      for (int i = 0, some; read.heads && i < m; i += some) {
        int sentence = rows->sentence[to ? to[i] : i], S = rows->sources[sentence];
        const float *keys = rows->memory[sentence] + l * room_of(M, S), *values = keys + K * (size_t)((S + L - 1) / L * L);
        some = 1;
        if (S < LONG) {
          attend_fixed(M, read, w.wide + (size_t)i * Q, keys, values, read.kv_heads * M->d_v, S,
                       w.heads + (size_t)i * V, w.scores);
          continue;
        }
        while (some < MANY && i + some < m && rows->sentence[to ? to[i + some] : i + some] == sentence) some++;
        Memory a = {M, read, some, S, padded, w.wide + (size_t)i * Q, keys, w.heads + (size_t)i * V, w.scores};
        int pieces = team ? PIECES_OF(team->threads) : 1;
        shared_by(team, some_read, &a, SHARED, pieces < read.heads ? pieces : read.heads);
      }
      product_of(&w, &layer->cross_output, l, 1, offsetof(Lows, cross_output), w.heads, V, m, w.x, M->d, ADD);
      leave(M, &layer->cross_norm, &w, m);
    }
    feed_forward(M, 1, l, &w, m);
  }
  if (M->decoder_norm.gain)
    normalise_rows(M, &M->decoder_norm, w.x, m, features);
  else
    memcpy(features, w.x, sizeof(float) * m * M->d);
  return 1;
}

/* ---------------------------------------------------------------------------------------------- the next token */

/* features (m, d) -> logits (m, N), N the columns of p, which may be a shortlist's. */
void logits(const Product *p, int32_t m, const float *features, float *out, Team *team, char *space) {
  product(team, features, p->K, m, p, out, p->N, SET, space);
}

typedef struct {
  int n, found;
  float bound, *scores;
  int32_t *tokens;
} Chosen;

/* Let some logits, `first` being the id of the first, take their place among the best n. */
static void consider(Chosen *c, const float *x, int count, int first) {
  for (int j = 0; j < count; j++) {
    if (c->found == c->n && !(x[j] > c->bound)) continue;
    int at = c->found < c->n ? c->found++ : c->n - 1;
    for (; at && c->scores[at - 1] < x[j]; at--)
      c->scores[at] = c->scores[at - 1], c->tokens[at] = c->tokens[at - 1];
    c->scores[at] = x[j], c->tokens[at] = first + j;
    if (c->found == c->n) c->bound = c->scores[c->n - 1];
  }
}

/* The n best of N logits, best first, of equals the lower first. 0 if they are not numbers. */
static int choose(const float *x, int N, int n, float *scores, int32_t *tokens) {
  Chosen c = {n, 0, -INFINITY, scores, tokens};
  ints good = {};
  int i = 0, fine = 1;
  good = ~good;
  for (; i + 4 * L <= N; i += 4 * L) {
    vec a = load(x + i), b = load(x + i + L), d = load(x + i + 2 * L), e = load(x + i + 3 * L);
    good &= (a == a) & (b == b) & (d == d) & (e == e);
    if (c.found < n || any(larger(larger(a, b), larger(d, e)) > c.bound)) consider(&c, x + i, 4 * L, i);
  }
  consider(&c, x + i, N - i, i);
  for (; i < N; i++) fine &= x[i] == x[i];
  return fine && !any(~good) && c.found == n && scores[0] > -INFINITY && scores[0] < INFINITY;
}

/* log sum e^x. With an order-free sum of fixed-point numbers where columns may lie anywhere (a shortlist). */
static double log_sum(const float *x, int N, float top, int free) {
  vec sum = all(0.0f);
  int64_t fixed = 0;
  for (int i = 0; i < N; i += L) {
    vec y = all(-INFINITY);
    if (N - i >= L) y = load(x + i); else memcpy(&y, x + i, sizeof(float) * (N - i));
    y = exponential(y - top);
    if (free)
      for (int j = 0; j < L; j++) fixed += (int64_t)(y[j] * 0x1p40f);
    else
      sum += y;
  }
  return top + log(free ? fixed * 0x1p-40 : (double)total(sum));
}

/* features (m, d) -> the n best columns of each row: log-probabilities (or logits) and columns, both (m, n).
   `bias` has for each row numbers to add to its logits, -inf for what its shortlist leaves out; it may be absent.
   `rows` rows at a time go through `space`. Returns 0 if some logits are not numbers. */
int32_t best(const Product *p, int32_t m, const float *features, int32_t n, int32_t normalised,
             const float *const *bias, float *scores, int32_t *tokens, int32_t rows, Team *team, char *space) {
  int N = p->N, good = 1;
  float *x = (float *)space;
  char *bytes = space + rounded(4 * (size_t)rows * N);
  for (int first = 0; first < m; first += rows) {
    int some = m - first < rows ? m - first : rows;
    product(team, features + (size_t)first * p->K, p->K, some, p, x, N, SET, bytes);
    for (int r = 0; r < some; r++) {
      float *row = x + (size_t)r * N, *score = scores + (size_t)(first + r) * n;
      if (bias)
        for (int i = 0; i < N; i++) row[i] += bias[first + r][i];
      const int fine = choose(row, N, n, score, tokens + (size_t)(first + r) * n);
      good &= fine;
      if (!normalised || !fine) continue; /* what is no number has no place among whole numbers */
      double all_of_them = log_sum(row, N, score[0], bias != 0);
      for (int i = 0; i < n; i++) score[i] = (float)(score[i] - all_of_them);
    }
  }
  return good;
}

/* Copy the columns `of` (n of them) of a product into panels of another, which has the room. */
void columns(const Product *from, int32_t n, const int32_t *of, float *w, uint16_t *h, int8_t *q, float *scale,
             int32_t *sum, float *bias) {
  int K = from->K, K4 = (K + 3) / 4;
  for (int j = 0; j < n; j++) {
    size_t old = of[j] / PANEL, new = j / PANEL;
    if (from->w)
      for (int k = 0; k < K; k++)
        w[(new * K + k) * PANEL + j % PANEL] = from->w[(old * K + k) * PANEL + of[j] % PANEL];
    else if (from->h)
      for (int k = 0; k < K; k++)
        h[(new * K + k) * PANEL + j % PANEL] = from->h[(old * K + k) * PANEL + of[j] % PANEL];
    else {
      for (int k = 0; k < K4; k++)
        memcpy(q + ((new * K4 + k) * PANEL + j % PANEL) * 4, from->q + ((old * K4 + k) * PANEL + of[j] % PANEL) * 4, 4);
      scale[j] = from->scale[of[j]], sum[j] = from->sum[of[j]];
    }
    if (from->bias) bias[j] = from->bias[of[j]];
  }
}
