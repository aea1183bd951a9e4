/* What takes the time of a training step on a CPU, in C: loss, attention, linear maps, feed-forward networks, residual
   connections and dropout, with their gradients.

   Letters: N tokens, V vocabulary, d width; B batch, H heads, T queries, S keys; M, N, K sizes of a product, F inner
   width.

   Each function does with one thread what the core says (regard/core/losses.py, attention.py, layers.py), in the same
   order whenever it is called: who trains twice gets the same bits. A batch is shared among threads further up
   (regard/training/parallel.py). The gain is in the cache: a block of logits, or the scores of a head, are made, used
   and forgotten before the next one comes. Widths are multiples of 16, but those of heads and of tables. */

#include <stdlib.h>

#include "vectors.h"

/* Whether these products were measured to be worth it: with the 32 large registers that they were written for. */
int32_t worth_it(void) {
#ifdef __AVX512F__
  return 1;
#else
  return 0;
#endif
}

/* ---------------------------------------------------------------------------------------------- products */

enum { SET, ADD, CUT, ROUND }; /* C becomes A B, or grows by it, or becomes max(0, A B), or A B in bf16 */

/* m rows (a constant) and `w` vectors of columns (a constant) of C; A's number (i, k) lies at i · row + k · step. */
INLINE void tile(int m, int w, int K, const float *a, size_t row, size_t step, const float *b, size_t ldb,
                 const float *start, float *c, size_t ldc, int mode) {
  vec sum[TILE * 2];
#pragma GCC unroll 12
  for (int i = 0; i < m; i++)
#pragma GCC unroll 2
    for (int j = 0; j < w; j++) {
      sum[i * w + j] = all(0.0f);
      if (start) sum[i * w + j] = load(start + j * L);
    }
  for (int k = 0; k < K; k++) {
    vec y[2];
#pragma GCC unroll 2
    for (int j = 0; j < w; j++) y[j] = load(b + k * ldb + j * L);
#pragma GCC unroll 12
    for (int i = 0; i < m; i++) {
      float x = a[i * row + k * step];
#pragma GCC unroll 2
      for (int j = 0; j < w; j++) sum[i * w + j] += x * y[j];
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < m; i++)
#pragma GCC unroll 2
    for (int j = 0; j < w; j++) {
      float *to = c + i * ldc + j * L;
      if (mode == ADD) sum[i * w + j] += load(to);
      if (mode == CUT) sum[i * w + j] = larger(all(0.0f), sum[i * w + j]); /* in this order what is no number stays */
      store(to, sum[i * w + j]);
    }
}

#define CASES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#define CASE(m, w, row, step)                                                                                        \
  case m:                                                                                                            \
    if (m <= TILE) tile(m <= TILE ? m : 1, w, K, a, row, step, b + j, ldb, start ? start + j : 0, c + j, ldc, mode); \
    break;
#define WIDE_ROWS(m) CASE(m, 2, lda, 1)
#define ROWS(m) CASE(m, 1, lda, 1)
#define WIDE_COLUMNS(m) CASE(m, 2, 1, lda)
#define COLUMNS(m) CASE(m, 1, 1, lda)

/* C (M, N) = A B or C += A B, for A (M, K), or, if it lies as its transpose, (K, M). N is a multiple of 16. Each row of
   A B begins with the N numbers `start`, if there are any. */
#define PRODUCT(name, ACROSS, WIDE, NARROW)                                                                          \
  static void name(int M, int N, int K, const float *a, size_t lda, const float *b, size_t ldb, const float *start,  \
                   float *c, size_t ldc, int mode) {                                                                 \
    for (int i = 0; i < M; i += TILE, a += TILE * (ACROSS), c += TILE * ldc) {                                       \
      int m = M - i < TILE ? M - i : TILE, j = 0;                                                                    \
      for (; j + PANEL <= N; j += PANEL) switch (m) { CASES(WIDE) }                                                  \
      if (j < N) switch (m) { CASES(NARROW) }                                                                        \
    }                                                                                                                \
  }
PRODUCT(product, lda, WIDE_ROWS, ROWS)
PRODUCT(transposed_product, 1, WIDE_COLUMNS, COLUMNS)

#define WHOLE(d) (((d) + L - 1) / L * L) /* numbers of whole vectors */

/* x (n, d) as (d, width), filled up with zeros, in d as well; width is a multiple of 16. */
static void transpose(int n, int d, const float *x, size_t stride, float *to, int width) {
  for (int j = 0; j < width; j += L)
    for (int k = 0; k < d; k += L) {
      vec t[L];
#pragma GCC unroll 16
      for (int i = 0; i < L; i++) {
        t[i] = all(0.0f);
        if (j + i < n) t[i] = load_some(x + (j + i) * stride + k, d - k);
      }
#define EXCHANGE(n)                                                                                                  \
  _Pragma("GCC unroll 16") for (int i = 0; i < L; i++) if (!(i & (n))) {                                             \
    vec a = t[i], b = t[i + (n)];                                                                                    \
    t[i] = SHUFFLE(n, a, b, 0), t[i + (n)] = SHUFFLE(n, a, b, n);                                                    \
  }
      EXCHANGE(8) EXCHANGE(4) EXCHANGE(2) EXCHANGE(1)
#pragma GCC unroll 16
      for (int i = 0; i < L; i++) store(to + (size_t)(k + i) * width + j, t[i]);
    }
}

/* x (n, d) in rows of whole vectors: as it is, or copied, filled up with zeros. */
static const float *whole_rows(int n, int d, const float *x, size_t *stride, float *to) {
  const int width = WHOLE(d);
  if (d == width) return x;
  for (int i = 0; i < n; i++)
    for (int j = 0; j < d; j += L) store(to + i * width + j, load_some(x + i * *stride + j, d - j));
  *stride = width;
  return to;
}

/* C (M, N) = A B for B (K, N) of any N, by `product` or `transposed_product`; `room` is for (M + K, N) whole vectors. */
#define NARROW_PRODUCT(name, by)                                                                                       \
  static void name(int M, int N, int K, const float *a, size_t lda, const float *b, size_t ldb, float *c, size_t ldc, \
                   float *room) {                                                                                      \
    const int width = WHOLE(N);                                                                                        \
    b = whole_rows(K, N, b, &ldb, room + (size_t)M * width);                                                           \
    by(M, width, K, a, lda, b, ldb, 0, N == width ? c : room, N == width ? ldc : (size_t)width, SET);                  \
    for (int i = 0; i < M && N != width; i++)                                                                          \
      for (int j = 0; j < N; j += L) store_some(c + i * ldc + j, load(room + i * width + j), N - j);                   \
  }
NARROW_PRODUCT(narrow_product, product)
NARROW_PRODUCT(narrow_transposed, transposed_product)

/* ---------------------------------------------------------------------------------------------- dropout */

/* n numbers y = scale · x where the draw is not below the threshold, which a bit of `keep` remembers, 0 elsewhere. */
void dropout(int64_t n, const float *x, const int16_t *draws, int16_t threshold, float scale, float *y,
             uint16_t *keep) {
  for (; n >= L; n -= L, x += L, draws += L, y += L, keep++) {
    *keep = not_below(threshold, draws);
    store(y, where(*keep, load(x) * scale));
  }
  for (int i = *keep = 0; i < n; i++) {
    *keep |= (draws[i] >= threshold) << i;
    y[i] = draws[i] >= threshold ? x[i] * scale : 0.0f;
  }
}

void dropout_back(int64_t n, const float *g, const uint16_t *keep, float scale, float *dx) {
  for (; n >= L; n -= L, g += L, keep++, dx += L) store(dx, where(*keep, load(g) * scale));
  for (int i = 0; i < n; i++) dx[i] = *keep >> i & 1 ? g[i] * scale : 0.0f;
}

/* ---------------------------------------------------------------------------------------------- linear maps */

#define SHARE 240 /* rows of a batch at a time: they stay in the cache while all is done with them */

/* Wᵀ for W (N, K), in panels: one of them and SHARE rows of a batch stay in the cache. 0 if there is no memory. */
static float *across(int N, int K, const float *W) {
  float *wt = aligned_alloc(64, sizeof(float) * N * K);
  for (int j = 0; wt && j < N; j += PANEL) {
    const int n = N - j < PANEL ? N - j : PANEL;
    transpose(n, K, W + (size_t)j * K, K, wt + (size_t)j * K, n);
  }
  return wt;
}

/* m rows y = x Wᵀ + b, or max(0, x Wᵀ + b), as `mode` says. */
static void map(int m, int N, int K, const float *x, const float *wt, const float *b, float *y, int mode) {
  for (int j = 0; j < N; j += PANEL) {
    const int n = N - j < PANEL ? N - j : PANEL;
    product(m, n, K, x, K, wt + (size_t)j * K, n, b ? b + j : 0, y + j, N, mode);
  }
}

/* What m rows g of the gradient of y make of those of x, W and b; any may be absent. */
static void map_back(int m, int N, int K, const float *x, const float *W, const float *g, float *dx, float *dW,
                     float *db, int mode) {
  if (dx) product(m, K, N, g, N, W, K, 0, dx, K, SET);
  if (dW) transposed_product(N, K, m, g, N, x, K, 0, dW, K, mode);
  if (db && mode == SET) memset(db, 0, sizeof(float) * N);
  for (int r = 0; db && r < m; r++)
    for (int j = 0; j < N; j += L) store(db + j, load(db + j) + load(g + (size_t)r * N + j));
}

#define SHARES(i, m, M) /* of M rows: m of them from i on; once, with none, if there are none at all */              \
  for (int i = 0, m; m = (M) - i < SHARE ? (M) - i : SHARE, i < (M) || !i; i += SHARE)

/* y (M, N) = x Wᵀ + b for W (N, K); b may be absent. Returns 0 if there is no memory. */
int32_t linear(int32_t M, int32_t N, int32_t K, const float *x, const float *W, const float *b, float *y) {
  float *wt = across(N, K, W);
  if (!wt) return 0;
  SHARES(i, m, M) map(m, N, K, x + (size_t)i * K, wt, b, y + (size_t)i * N, SET);
  free(wt);
  return 1;
}

/* Its gradients from that of y: dx (M, K), dW (N, K), db (N); any may be absent, and without dW so may x. */
void linear_back(int32_t M, int32_t N, int32_t K, const float *x, const float *W, const float *g, float *dx, float *dW,
                 float *db) {
  SHARES(i, m, M)
  map_back(m, N, K, dW ? x + (size_t)i * K : 0, W, g + (size_t)i * N, dx ? dx + (size_t)i * K : 0, dW, db,
           i ? ADD : SET);
}

/* ---------------------------------------------------------------------------------------------- feed-forward */

/* W₁ (F, K) and W₂ (N, F), b₁ and b₂, which may be absent, or their gradients, any of which may. */
typedef struct {
  float *W1, *b1, *W2, *b2;
} TwoMaps;

/* m rows h (F) = max(0, x W₁ᵀ + b₁), of which `keep` says what dropout leaves, if there is any. */
static void inner_rows(int m, int F, int K, const float *x, const float *wt, const float *b, const uint16_t *keep,
                       float scale, float *h) {
  map(m, F, K, x, wt, b, h, CUT);
  if (keep) dropout_back((int64_t)m * F, h, keep, scale, h);
}

/* y (M, N) = h W₂ᵀ + b₂ for h (M, F) = dropout(max(0, x W₁ᵀ + b₁)). Without draws nothing is dropped; `keep` remembers
   what is not. h may be absent: then the way back makes it again. */
int32_t feed_forward(int32_t M, int32_t N, int32_t F, int32_t K, const float *x, const TwoMaps *by,
                     const int16_t *draws, int16_t threshold, float scale, uint16_t *keep, float *h, float *y) {
  float *first = across(F, K, by->W1), *second = across(N, F, by->W2);
  float *block = h ? h : aligned_alloc(64, sizeof(float) * SHARE * F);
  for (int64_t j = 0; draws && j < (int64_t)M * F; j += L) keep[j / L] = not_below(threshold, draws + j);
  if (first && second && block) SHARES(i, m, M) {
      const uint16_t *kept = draws ? keep + (size_t)i * F / L : 0;
      float *inner = h ? h + (size_t)i * F : block;
      inner_rows(m, F, K, x + (size_t)i * K, first, by->b1, kept, scale, inner);
      map(m, N, F, inner, second, by->b2, y + (size_t)i * N, SET);
    }
  free(first), free(second);
  if (!h) free(block);
  return first && second && block;
}

/* Its gradients. What was cut off or dropped is 0 in h, and gets none. */
int32_t feed_forward_back(int32_t M, int32_t N, int32_t F, int32_t K, const float *x, const float *h, const TwoMaps *by,
                          const uint16_t *keep, float scale, const float *g, float *dx, const TwoMaps *to) {
  float *dh = aligned_alloc(64, sizeof(float) * SHARE * F * (h ? 1 : 2)), *block = dh + (size_t)SHARE * F;
  float *first = h ? 0 : across(F, K, by->W1);
  const int32_t enough = dh && (h || first);
  if (enough) SHARES(i, m, M) {
      const float *rows = x + (size_t)i * K, *inner = h ? h + (size_t)i * F : block;
      if (!h) inner_rows(m, F, K, rows, first, by->b1, keep ? keep + (size_t)i * F / L : 0, scale, block);
      map_back(m, N, F, inner, by->W2, g + (size_t)i * N, dh, to->W2, to->b2, i ? ADD : SET);
      for (int j = 0; j < m * F; j++) dh[j] = inner[j] > 0.0f ? dh[j] * scale : 0.0f;
      map_back(m, F, K, rows, by->W1, dh, dx ? dx + (size_t)i * K : 0, to->W1, to->b1, i ? ADD : SET);
    }
  free(dh), free(first);
  return enough;
}

/* ---------------------------------------------------------------------------------------------- residuals */

/* y (N, d) = LayerNorm(x + dropout(s)), with gain w and bias b; without w no norm, without draws no dropout. For the
   way back `keep` remembers what was not dropped, `slope` 1/σ of each row, and `standard`, unless it is absent, the
   rows before gain and bias. */
void residual(int64_t N, int32_t d, const float *x, const float *s, const int16_t *draws, int16_t threshold,
              float scale, const float *w, const float *b, float eps, float *y, uint16_t *keep, float *slope,
              float *standard) {
  for (int64_t r = 0; r < N; r++, x += d, s += d, y += d) {
    for (int i = 0; i < d; i += L) {
      vec z = load(s + i);
      if (draws) z = where(*keep++ = not_below(threshold, draws + r * d + i), z * scale);
      store(y + i, load(x + i) + z);
    }
    if (!w) continue;
    vec sum = all(0.0f), square = all(0.0f);
    for (int i = 0; i < d; i += L) sum += load(y + i);
    const float mean = total(sum) / d;
    for (int i = 0; i < d; i += L) square += (load(y + i) - mean) * (load(y + i) - mean);
    slope[r] = 1.0f / sqrtf(total(square) / d + eps);
    for (int i = 0; i < d; i += L) {
      const vec z = (load(y + i) - mean) * slope[r];
      if (standard) store(standard + r * d + i, z);
      store(y + i, z * load(w + i) + load(b + i));
    }
  }
}

/* Whether the rows before gain and bias can be told from those after: if w is nowhere small beside b. */
int32_t tells(int32_t d, const float *w, const float *b) {
  for (int i = 0; i < d; i++)
    if (!(fabsf(w[i]) * 16 > 1 + fabsf(b[i]))) return 0;
  return 1;
}

/* With a norm: gradients of x and s, N rows of d, and of w and b, from that of y. Without dropout ds is absent: it is
   dx. */
void residual_back(int64_t N, int32_t d, const float *g, const float *y, const float *standard, const uint16_t *keep,
                   float scale, const float *w, const float *b, const float *slope, float *dx, float *ds, float *dw,
                   float *db) {
  memset(dw, 0, sizeof(float) * d), memset(db, 0, sizeof(float) * d);
  for (int64_t r = 0; r < N; r++, g += d, dx += d) {
    vec sum = all(0.0f), along = all(0.0f);
    for (int i = 0; i < d; i += L) {
      vec z = load((standard ? standard : y) + r * d + i);
      if (!standard) z = (z - load(b + i)) / load(w + i);
      const vec slant = load(g + i) * load(w + i);
      store(dw + i, load(dw + i) + load(g + i) * z);
      store(db + i, load(db + i) + load(g + i));
      sum += slant, along += slant * z;
      store(dx + i, z);
    }
    const float level = total(sum) / d, tilt = total(along) / d;
    for (int i = 0; i < d; i += L)
      store(dx + i, (load(g + i) * load(w + i) - level - load(dx + i) * tilt) * slope[r]);
    for (int i = 0; ds && i < d; i += L) store(ds + r * d + i, where(*keep++, load(dx + i) * scale));
  }
}

/* ---------------------------------------------------------------------------------------------- tables */

/* y (N, d): sums of R rows of a table (V, d) each. */
void bags(int64_t N, int32_t R, int32_t d, const int32_t *rows, const float *table, float *y) {
  for (; N; N--, rows += R, y += d)
    for (int j = 0; j < d; j += L) {
      vec sum = all(0.0f);
      for (int r = 0; r < R; r++) sum += load_some(table + (size_t)rows[r] * d + j, d - j);
      store_some(y + j, sum, d - j);
    }
}

/* The gradient of the table, which grows, from that of y. */
void bags_back(int64_t N, int32_t R, int32_t d, const int32_t *rows, const float *g, float *dtable) {
  for (; N; N--, rows += R, g += d)
    for (int r = 0; r < R; r++)
      for (int j = 0; j < d; j += L) {
        float *to = dtable + (size_t)rows[r] * d + j;
        store_some(to, load_some(to, d - j) + load_some(g + j, d - j), d - j);
      }
}

/* ---------------------------------------------------------------------------------------------- the loss */

#define BLOCK 96  /* tokens at a time: a multiple of PANEL and of TILE */
#define CHUNK 252 /* words of the vocabulary whose exponentials are used while they are in the nearest cache */

/* Σ logsumexp(z) - hit · z_y over tokens, z = h Wᵀ + b; its gradients dh (N, d), dW (V, d) and db (V), which
   grows; any of the three may be absent. A block of logits lies as (V, tokens): its columns are as wide as vectors,
   and W is read as it is. Returns 0 if there is no memory. */
int32_t cross_entropy(int32_t N, int32_t V, int32_t d, const float *h, const float *W, const float *b,
                      const int64_t *labels, float hit, float *dh, float *dW, float *db, double *loss) {
  float *z = aligned_alloc(64, sizeof(float) * BLOCK * ((size_t)V + 2 * d));
  if (!z) return 0;
  float *xt = z + (size_t)V * BLOCK, *x_share = xt + (size_t)d * BLOCK;
  *loss = 0.0;
  if (dW && !N) memset(dW, 0, sizeof(float) * V * d);
  for (int first = 0; first < N; first += BLOCK) {
    const int n = N - first < BLOCK ? N - first : BLOCK, width = (n + PANEL - 1) / PANEL * PANEL;
    const float *x = h + (size_t)first * d;
    const int64_t *y = labels + first;
    float z_y[BLOCK], share[BLOCK];
    vec top[BLOCK / L], sum[BLOCK / L];
    for (int j = 0; j < BLOCK / L; j++) top[j] = all(-INFINITY), sum[j] = all(0.0f);

    transpose(n, d, x, d, xt, width);
    for (int v = 0; v < V; v += TILE) {
      const int m = V - v < TILE ? V - v : TILE;
      product(m, width, d, W + (size_t)v * d, d, xt, width, 0, z + (size_t)v * BLOCK, BLOCK, SET);
      for (int i = v; i < v + m; i++)
        for (int j = 0; j < width / L; j++) {
          float *at = z + (size_t)i * BLOCK + j * L;
          if (b) store(at, load(at) + b[i]);
          top[j] = larger(top[j], load(at)); /* in this order what is no number stays */
        }
    }
    for (int i = 0; i < n; i++) z_y[i] = z[y[i] * BLOCK + i];

    float *g = dh ? dh + (size_t)first * d : 0;
    for (int v = 0; v < V; v += CHUNK) {
      const int m = V - v < CHUNK ? V - v : CHUNK;
      float *e = z + (size_t)v * BLOCK;
      for (int i = 0; i < m; i++)
        for (int j = 0; j < width / L; j++) {
          float *at = e + (size_t)i * BLOCK + j * L;
          vec power = exponential(load(at) - top[j]);
          store(at, power);
          sum[j] += power;
        }
      if (dh) transposed_product(n, d, m, e, BLOCK, W + (size_t)v * d, d, 0, g, d, v ? ADD : SET);
    }

    for (int i = 0; i < n; i++) {
      const float s = sum[i / L][i % L];
      share[i] = 1.0f / s;
      *loss += top[i / L][i % L] + logf(s) - hit * z_y[i];
      for (int k = 0; k < d; k++) x_share[(size_t)i * d + k] = x[(size_t)i * d + k] * share[i];
      if (dh)
        for (int k = 0; k < d; k++) g[(size_t)i * d + k] = g[(size_t)i * d + k] * share[i] - hit * W[y[i] * d + k];
    }
    if (dW)
      for (int v = 0; v < V; v += TILE)
        product(V - v < TILE ? V - v : TILE, d, n, z + (size_t)v * BLOCK, BLOCK, x_share, d, 0, dW + (size_t)v * d, d,
                first ? ADD : SET);
    if (dW)
      for (int i = 0; i < n; i++)
        for (int k = 0; k < d; k++) dW[y[i] * d + k] -= hit * x[(size_t)i * d + k];
    if (db) {
      for (int v = 0; v < V; v++)
        for (int i = 0; i < n; i++) db[v] += z[(size_t)v * BLOCK + i] * share[i];
      for (int i = 0; i < n; i++) db[y[i]] -= hit;
    }
  }
  free(z);
  return 1;
}

/* ---------------------------------------------------------------------------------------------- attention */

/* A tensor (B, H, T, d): numbers of a row lie together, rows, heads and batch where these strides say. */
typedef struct {
  float *at;
  int64_t batch, head, row;
} Heads;

/* Bytes (B, H, T, S), 0 where a query may not look; a stride of 0 repeats. None at all: all may look. */
typedef struct {
  const uint8_t *at;
  int64_t batch, head, row, key;
} Mask;

typedef struct {
  int32_t B, H, T, S, d_k, d_v;
  int32_t causal; /* no query sees a later key: besides the mask */
  float scale;
  Heads q, k, v;
  Heads bias; /* (B, H, T, S), added to the scores; strides of 0 repeat; none at all: nothing is */
  Mask mask;
  const uint16_t *keep; /* which weights dropout leaves, (B, H, T, ⌈S / 16⌉) words of a bit each; none: all of them */
  float kept;           /* what they are multiplied with */
} Attention;

INLINE float *of(const Heads *x, int b, int h) { return x->at + b * x->batch + h * x->head; }

/* 0 where query t may look, -∞ elsewhere, for `width` keys. */
static void barrier(const Attention *A, int b, int h, int t, float *to, int width) {
  const int seen = A->causal && t + 1 < A->S ? t + 1 : A->S;
  const uint8_t *may = A->mask.at + b * A->mask.batch + h * A->mask.head + t * A->mask.row;
  for (int i = 0; i < seen; i++) to[i] = !A->mask.at || may[i * A->mask.key] ? 0.0f : -INFINITY;
  for (int i = seen; i < width; i++) to[i] = -INFINITY;
}

/* Rows of S draws: a bit each, 1 where one is not below the threshold. A row begins with a new word. */
void keep_rows(int64_t rows, int32_t S, const int16_t *draws, int16_t threshold, uint16_t *keep) {
  for (; rows; rows--, draws += S)
    for (int i = 0; i < S; i += L, keep++)
      if (S - i >= L) *keep = not_below(threshold, draws + i);
      else
        for (int j = *keep = 0; j < S - i; j++) *keep |= (draws[i + j] >= threshold) << j;
}

/* Dropout of what stands where the weights of a head do, or of its gradient. */
static void thin(const Attention *A, int b, int h, float *p, int width) {
  const size_t n = (size_t)A->T * width;
  if (A->keep) dropout_back(n, p, A->keep + ((size_t)b * A->H + h) * n / L, A->kept, p);
}

/* The scores of T queries become exp(score - level), 0 where they may not look. In the forward pass the level is found,
   log Σ exp(score), or ∞ for a query that may see nothing; on the way back it is known. `wall` is room for a row. */
static void weigh(const Attention *A, int b, int h, float *s, int width, float *wall, float *level, int known) {
  for (int t = 0; t < A->T; t++, s += width) {
    if (!t || A->causal || A->mask.row) barrier(A, b, h, t, wall, width);
    const float *bias = A->bias.at ? of(&A->bias, b, h) + t * A->bias.row : 0;
    vec top = all(-INFINITY), sum = all(0.0f);
    for (int i = 0; i < width; i += L) {
      vec x = load(s + i) * A->scale + load(wall + i);
      if (bias) x += load_some(bias + i, A->S - i);
      store(s + i, x);
      top = larger(top, x);
    }
    const float most = known ? level[t] : largest(top);
    if (most == -INFINITY) {
      memset(s, 0, sizeof(float) * width);
      level[t] = INFINITY;
      continue;
    }
    for (int i = 0; i < width; i += L) {
      vec e = exponential(load(s + i) - most);
      store(s + i, e);
      sum += e;
    }
    if (known) continue;
    const float whole = total(sum), share = 1.0f / whole;
    for (int i = 0; i < width; i += L) store(s + i, load(s + i) * share);
    level[t] = most + logf(whole);
  }
}

/* Of one query, with weights P and D = Σ out · dout: ds = P (dP - D) scale, and the next row of that of a bias. */
INLINE void slope_of(const Attention *A, const float *p, float *ds, float D, int width, float **dbias) {
  for (int i = 0; i < width; i += L) {
    const vec slope = load(p + i) * (load(ds + i) - D);
    if (*dbias) store_some(*dbias + i, slope, A->S - i);
    store(ds + i, slope * A->scale);
  }
  if (*dbias) *dbias += A->S;
}

/* out (B, H, T, d_v) = softmax(scale · q kᵀ + bias) v, and `level` (B, H, T), what the way back needs to know. */
int32_t attend(const Attention *A, const Heads *out, float *level) {
  const int T = A->T, S = A->S, width = WHOLE(S), d_k = WHOLE(A->d_k);
  float *room = aligned_alloc(64, sizeof(float) * (width * ((size_t)d_k + T + 1) + (size_t)(T + S) * WHOLE(A->d_v)));
  if (!room) return 0;
  float *keys = room, *p = keys + (size_t)d_k * width, *wall = p + (size_t)T * width, *some = wall + width;
  for (int b = 0; b < A->B; b++)
    for (int h = 0; h < A->H; h++, level += T) {
      transpose(S, A->d_k, of(&A->k, b, h), A->k.row, keys, width);
      product(T, width, A->d_k, of(&A->q, b, h), A->q.row, keys, width, 0, p, width, SET);
      weigh(A, b, h, p, width, wall, level, 0);
      thin(A, b, h, p, width);
      narrow_product(T, A->d_v, S, p, width, of(&A->v, b, h), A->v.row, of(out, b, h), out->row, some);
    }
  free(room);
  return 1;
}

/* The gradients of q, k and v from that of `out`. With the weights P and D = Σ out · dout of a query:
   dV = Pᵀ dout, dP = dout Vᵀ, dS = P (dP - D) scale, dQ = dS K, dK = dSᵀ Q. Dropout thins the P of dV, and dP. That of
   the bias, dS / scale, (B, H, T, S), may be absent. */
int32_t attend_back(const Attention *A, const Heads *out, const Heads *dout, float *level, const Heads *dq,
                    const Heads *dk, const Heads *dv, float *dbias) {
  const int T = A->T, S = A->S, width = WHOLE(S);
  const size_t widest = WHOLE(A->d_k > A->d_v ? A->d_k : A->d_v);
  float *room = aligned_alloc(64, sizeof(float) * (width * (widest + 2 * T + 1) + (T + S) * widest));
  if (!room) return 0;
  float *across = room, *p = across + widest * width, *ds = p + (size_t)T * width;
  float *wall = ds + (size_t)T * width, *some = wall + width;
  for (int b = 0; b < A->B; b++)
    for (int h = 0; h < A->H; h++, level += T) {
      const float *q = of(&A->q, b, h), *k = of(&A->k, b, h), *g = of(dout, b, h), *o = of(out, b, h);
      transpose(S, A->d_k, k, A->k.row, across, width);
      product(T, width, A->d_k, q, A->q.row, across, width, 0, p, width, SET);
      transpose(S, A->d_v, of(&A->v, b, h), A->v.row, across, width);
      product(T, width, A->d_v, g, dout->row, across, width, 0, ds, width, SET);
      weigh(A, b, h, p, width, wall, level, 1);
      thin(A, b, h, ds, width);
      for (int t = 0; t < T; t++) {
        float *weights = p + (size_t)t * width, *slopes = ds + (size_t)t * width;
        vec sum = all(0.0f);
        for (int i = 0; i < A->d_v; i += L)
          sum += load_some(g + t * dout->row + i, A->d_v - i) * load_some(o + t * out->row + i, A->d_v - i);
        slope_of(A, weights, slopes, total(sum), width, &dbias);
      }
      thin(A, b, h, p, width);
      narrow_transposed(S, A->d_v, T, p, width, g, dout->row, of(dv, b, h), dv->row, some);
      narrow_product(T, A->d_k, S, ds, width, k, A->k.row, of(dq, b, h), dq->row, some);
      narrow_transposed(S, A->d_k, T, ds, width, q, A->q.row, of(dk, b, h), dk->row, some);
    }
  free(room);
  return 1;
}

/* ---------------------------------------------------------------------------------------------- in bf16

   Attention, linear maps and feed-forward networks of numbers in bf16, where the processor multiplies these: two of each
   at a time, which lie side by side in a word, and sums in fp32. Scores, weights and their gradients are made in fp32, as
   above, and rounded for the products that they go into. Weights and biases of maps, and their gradients, are fp32. Here
   a `row` of Heads counts numbers of bf16, and widths are multiples of 32. */

int32_t halves(void) {
#ifdef __AVX512BF16__
  return 1;
#else
  return 0;
#endif
}

#ifdef __AVX512BF16__

/* So many bytes, in whole lines of the cache; 0 if there is no memory. */
static void *room_for(size_t bytes) { return aligned_alloc(64, (bytes + 63) / 64 * 64); }

/* As `tile`: A's word (i, k) lies at i · row + k · step, B's (k, j) at k · ldb + j; a C that is rounded is of bf16. */
INLINE void half_tile(int m, int w, int K, const uint32_t *a, size_t row, size_t step, const uint32_t *b, size_t ldb,
                      const float *start, float *c, uint16_t *half, size_t ldc, int mode) {
  __m512 sum[TILE * 2];
#pragma GCC unroll 12
  for (int i = 0; i < m; i++)
#pragma GCC unroll 2
    for (int j = 0; j < w; j++) sum[i * w + j] = start ? _mm512_loadu_ps(start + j * L) : _mm512_setzero_ps();
  for (int k = 0; k < K; k++) {
    __m512bh y[2];
#pragma GCC unroll 2
    for (int j = 0; j < w; j++) y[j] = (__m512bh)_mm512_loadu_si512(b + k * ldb + j * L);
#pragma GCC unroll 12
    for (int i = 0; i < m; i++) {
      const __m512bh x = (__m512bh)_mm512_set1_epi32((int)a[i * row + k * step]);
#pragma GCC unroll 2
      for (int j = 0; j < w; j++) sum[i * w + j] = _mm512_dpbf16_ps(sum[i * w + j], x, y[j]);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < m; i++)
#pragma GCC unroll 2
    for (int j = 0; j < w; j++) {
      const size_t at = i * ldc + j * L;
      if (mode == ROUND)
        _mm256_storeu_si256((__m256i *)(half + at), (__m256i)_mm512_cvtneps_pbh(sum[i * w + j]));
      else
        _mm512_storeu_ps(c + at, mode == ADD ? _mm512_add_ps(sum[i * w + j], _mm512_loadu_ps(c + at)) : sum[i * w + j]);
    }
}

#define HALF_CASE(m, w)                                                                                              \
  case m:                                                                                                            \
    half_tile(m, w, K, a + (size_t)i * row, row, step, b + j, ldb, start ? start + j : 0, (float *)c + i * ldc + j,  \
              (uint16_t *)c + i * ldc + j, ldc, mode);                                                               \
    break;
#define HALF_WIDE(m) HALF_CASE(m, 2)
#define HALF_NARROW(m) HALF_CASE(m, 1)

/* C (M, N) = A B for K words of each; N is a multiple of 16. */
static void half_product(int M, int N, int K, const uint32_t *a, size_t row, size_t step, const uint32_t *b, size_t ldb,
                         const float *start, void *c, size_t ldc, int mode) {
  for (int i = 0; i < M; i += TILE) {
    int m = M - i < TILE ? M - i : TILE, j = 0;
    for (; j + PANEL <= N; j += PANEL) switch (m) { CASES(HALF_WIDE) }
    if (j < N) switch (m) { CASES(HALF_NARROW) }
  }
}

INLINE __m512i words(__m256i x) { return _mm512_cvtepu16_epi32(x); }
INLINE __m256i rounded(const float *x) { return (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x)); }
INLINE __m512i paired(__m256i upper, __m256i lower) {
  return _mm512_or_si512(words(upper), _mm512_slli_epi32(words(lower), 16));
}

/* x (n, d) in bf16 -> words (⌈n / 2⌉, d): each has a number of an even row, and the one below it. */
static void pair_rows(int n, int d, const uint16_t *x, size_t stride, uint32_t *to) {
  for (int i = 0; i < n; i += 2, x += 2 * stride, to += d)
    for (int j = 0; j < d; j += L) {
      const __m256i below = i + 1 < n ? _mm256_loadu_si256((const __m256i *)(x + stride + j)) : _mm256_setzero_si256();
      _mm512_storeu_si512(to + j, paired(_mm256_loadu_si256((const __m256i *)(x + j)), below));
    }
}

/* The same of x (n, d) in fp32, which it rounds. */
static void pair_rounded(int n, int d, const float *x, uint32_t *to) {
  for (int i = 0; i < n; i += 2, x += 2 * d, to += d)
    for (int j = 0; j < d; j += L)
      _mm512_storeu_si512(to + j, paired(rounded(x + j), i + 1 < n ? rounded(x + d + j) : _mm256_setzero_si256()));
}

/* x (n, d) in fp32 -> in bf16. */
static void round_rows(int n, int d, const float *x, uint16_t *to) {
  for (size_t i = 0; i < (size_t)n * d; i += L) _mm256_storeu_si256((__m256i *)(to + i), rounded(x + i));
}

INLINE uint16_t *half_of(const Heads *x, int b, int h) { return (uint16_t *)x->at + b * x->batch + h * x->head; }
/* Rows as words: two numbers that lie side by side. */
INLINE const uint32_t *words_of(const uint16_t *x) { return (const uint32_t *)x; }

/* Words (n, d / 2) -> (d / 2, width). */
static void turn_words(int n, int d, const uint16_t *x, size_t stride, uint32_t *to, int width) {
  transpose(n, d / 2, (const float *)x, stride / 2, (float *)to, width);
}

int32_t attend_half(const Attention *A, const Heads *out, float *level) {
  const int T = A->T, S = A->S, width = WHOLE(S), d_k = A->d_k, d_v = A->d_v;
  const size_t pairs = (S + 1) / 2, scores = (size_t)T * width;
  uint32_t *room = room_for(4 * (d_k / 2 * width + pairs * d_v + scores + scores / 2 + width));
  if (!room) return 0;
  uint32_t *keys = room, *values = keys + d_k / 2 * width, *weights = values + pairs * d_v;
  float *p = (float *)(weights + scores / 2), *wall = p + scores;
  for (int b = 0; b < A->B; b++)
    for (int h = 0; h < A->H; h++, level += T) {
      turn_words(S, d_k, half_of(&A->k, b, h), A->k.row, keys, width);
      half_product(T, width, d_k / 2, words_of(half_of(&A->q, b, h)), A->q.row / 2, 1, keys, width, 0, p, width, SET);
      weigh(A, b, h, p, width, wall, level, 0);
      thin(A, b, h, p, width);
      round_rows(T, width, p, (uint16_t *)weights);
      pair_rows(S, d_v, half_of(&A->v, b, h), A->v.row, values);
      half_product(T, d_v, pairs, weights, width / 2, 1, values, d_v, 0, half_of(out, b, h), out->row, ROUND);
    }
  free(room);
  return 1;
}

int32_t attend_half_back(const Attention *A, const Heads *out, const Heads *dout, float *level, const Heads *dq,
                         const Heads *dk, const Heads *dv, float *dbias) {
  const int T = A->T, S = A->S, width = WHOLE(S), d_k = A->d_k, d_v = A->d_v;
  const int widest = d_k > d_v ? d_k : d_v, longest = T > S ? T : S;
  const size_t scores = (size_t)T * width, above = (size_t)(T + 1) / 2 * width, some = (size_t)(longest + 1) * widest;
  uint32_t *room = room_for(4 * (2 * scores + 2 * above + some + widest / 2 * width + width));
  if (!room) return 0;
  float *p = (float *)room, *ds = p + scores, *wall = ds + scores;
  uint32_t *across = (uint32_t *)(wall + width), *below = across + widest / 2 * width;
  uint32_t *weights = below + some, *slopes = weights + above;
  for (int b = 0; b < A->B; b++)
    for (int h = 0; h < A->H; h++, level += T) {
      const uint16_t *q = half_of(&A->q, b, h), *k = half_of(&A->k, b, h), *g = half_of(dout, b, h);
      const uint16_t *o = half_of(out, b, h);
      turn_words(S, d_k, k, A->k.row, across, width);
      half_product(T, width, d_k / 2, words_of(q), A->q.row / 2, 1, across, width, 0, p, width, SET);
      turn_words(S, d_v, half_of(&A->v, b, h), A->v.row, across, width);
      half_product(T, width, d_v / 2, words_of(g), dout->row / 2, 1, across, width, 0, ds, width, SET);
      weigh(A, b, h, p, width, wall, level, 1);
      thin(A, b, h, ds, width);
      for (int t = 0; t < T; t++) {
        float *P = p + (size_t)t * width, *D = ds + (size_t)t * width, sum = 0.0f;
        vec along = all(0.0f);
        for (int i = 0; i < d_v; i += WIDTH)
          along += (vec)(widened(g + t * dout->row + i) * widened(o + t * out->row + i));
        sum = total(along);
        slope_of(A, P, D, sum, width, &dbias);
      }
      thin(A, b, h, p, width);
      pair_rounded(T, width, p, weights);
      pair_rows(T, d_v, g, dout->row, below);
      half_product(S, d_v, (T + 1) / 2, weights, 1, width, below, d_v, 0, half_of(dv, b, h), dv->row, ROUND);
      pair_rounded(T, width, ds, slopes);
      pair_rows(T, d_k, q, A->q.row, below);
      half_product(S, d_k, (T + 1) / 2, slopes, 1, width, below, d_k, 0, half_of(dk, b, h), dk->row, ROUND);
      round_rows(T, width, ds, (uint16_t *)weights);
      pair_rows(S, d_k, k, A->k.row, below);
      half_product(T, d_k, (S + 1) / 2, weights, width / 2, 1, below, d_k, 0, half_of(dq, b, h), dq->row, ROUND);
    }
  free(room);
  return 1;
}

/* W (N, K) rounded, for products with rows of numbers: in panels of 32 columns of Wᵀ, or, to go `back`, of W; a word
   has two numbers that such a row meets one after the other. 0 if there is no memory. */
static uint32_t *half_panels(int N, int K, const float *W, int back) {
  uint32_t *to = room_for(4 * (size_t)N * K);
  uint16_t *w = to ? (uint16_t *)(to + (size_t)N * K / 2) : 0; /* behind the panels */
  if (to) round_rows(N, K, W, w);
  if (to && back)
    for (int j = 0; j < K; j += PANEL)
      for (int i = 0; i < N; i += 2) pair_rows(2, PANEL, w + (size_t)i * K + j, K, to + (size_t)j * (N / 2) + i / 2 * PANEL);
  if (to && !back)
    for (int j = 0; j < N; j += PANEL) turn_words(PANEL, K, w + (size_t)j * K, K, to + (size_t)j * (K / 2), PANEL);
  return to;
}

/* m rows y (N) = x W + b, rounded, by what `half_panels` made of W. */
static void half_map(int m, int N, int K, const uint16_t *x, const uint32_t *panels, const float *b, uint16_t *y) {
  for (int j = 0; j < N; j += PANEL)
    half_product(m, PANEL, K / 2, words_of(x), K / 2, 1, panels + (size_t)j * (K / 2), PANEL, b ? b + j : 0, y + j, N,
                 ROUND);
}

/* What m rows x (K) and the gradient g of what a map made of them, (N), make of those of W (N, K) and b, either of which
   may be absent. `room` is for (m + 1) (N + K) / 2 words. */
static void half_outer(int m, int N, int K, const uint16_t *x, const uint16_t *g, float *dW, float *db, uint32_t *room,
                       int mode) {
  const int pairs = (m + 1) / 2;
  uint32_t *rows = room + (size_t)pairs * N;
  if (dW) pair_rows(m, N, g, N, room);
  for (int j = 0; dW && j < K; j += PANEL) {
    for (int i = 0; i < m; i += 2) pair_rows(m - i < 2 ? 1 : 2, PANEL, x + (size_t)i * K + j, K, rows + i / 2 * PANEL);
    half_product(N, PANEL, pairs, room, 1, N, rows, PANEL, 0, dW + j, K, mode);
  }
  if (db && mode == SET) memset(db, 0, sizeof(float) * N);
  for (int r = 0; db && r < m; r++)
    for (int j = 0; j < N; j += WIDTH) *(part *)(db + j) += widened(g + (size_t)r * N + j);
}

/* y (M, N) = x Wᵀ + b for W (N, K); b may be absent. Returns 0 if there is no memory. */
int32_t linear_half(int32_t M, int32_t N, int32_t K, const uint16_t *x, const float *W, const float *b, uint16_t *y) {
  uint32_t *panels = half_panels(N, K, W, 0);
  if (!panels) return 0;
  SHARES(i, m, M) half_map(m, N, K, x + (size_t)i * K, panels, b, y + (size_t)i * N);
  free(panels);
  return 1;
}

/* Its gradients from that of y: dx (M, K), dW (N, K), db (N); any may be absent, and without dW so may x. */
int32_t linear_half_back(int32_t M, int32_t N, int32_t K, const uint16_t *x, const float *W, const uint16_t *g,
                         uint16_t *dx, float *dW, float *db) {
  uint32_t *panels = dx ? half_panels(N, K, W, 1) : 0, *room = room_for(2 * (size_t)(SHARE + 1) * (N + K));
  const int32_t enough = room && (panels || !dx);
  if (enough) SHARES(i, m, M) {
      const uint16_t *rows = dW ? x + (size_t)i * K : 0, *slopes = g + (size_t)i * N;
      if (dx) half_map(m, K, N, slopes, panels, 0, dx + (size_t)i * K);
      half_outer(m, N, K, rows, slopes, dW, db, room, i ? ADD : SET);
    }
  free(panels), free(room);
  return enough;
}

/* 1 / x to 14 bits, where 8 are kept. */
INLINE vec inverse(vec x) { return (vec)_mm512_rcp14_ps((__m512)x); }

/* An activation by its number (relu 0, gelu 1, silu 2, gelu by tanh 4, by sigmoid 6), and how steep it is there. */
INLINE vec activated(int kind, vec x, vec *slope) {
  if (kind == 0) {
    *slope = (vec)((x > all(0.0f)) & (ints)all(1.0f));
    return larger(all(0.0f), x);
  }
  if (kind == 1) {
    vec bell, a = larger(x, -x), tail = beyond(x, inverse(1.0f + 0.32f * a), &bell), positive = larger(all(0.0f), x);
    *slope = (vec)(((x > all(0.0f)) & (ints)(1.0f - tail)) | (~(x > all(0.0f)) & (ints)tail)) + x * bell * 0.39894228f;
    return positive - a * tail;
  }
  vec y = inverse(1.0f + exponential(-inside(kind, x))), steep = all(kind == 6 ? 1.702f : 1.0f);
  if (kind == 4) steep = 1.59576912f * (1.0f + 0.134145f * (x * x));
  *slope = y + x * y * (1.0f - y) * steep;
  return x * y;
}

/* n numbers h, the activation of z; on the way back, dh becomes the gradient of z. */
static void half_activate(int kind, int n, const uint16_t *z, uint16_t *h, uint16_t *dh) {
  for (int i = 0; i < n; i += L) {
    vec slope, y = activated(kind, (vec)widened(z + i), &slope);
    _mm256_storeu_si256((__m256i *)(h + i), (__m256i)_mm512_cvtneps_pbh((__m512)y));
    if (!dh) continue;
    slope *= (vec)widened(dh + i);
    _mm256_storeu_si256((__m256i *)(dh + i), (__m256i)_mm512_cvtneps_pbh((__m512)slope));
  }
}

/* y (M, N) = h W₂ᵀ + b₂ for h (M, F), the activation of z = x W₁ᵀ + b₁, which is kept for the way back. */
int32_t feed_forward_half(int32_t M, int32_t N, int32_t F, int32_t K, const uint16_t *x, const TwoMaps *by,
                          int32_t kind, uint16_t *z, uint16_t *y) {
  uint32_t *first = half_panels(F, K, by->W1, 0), *second = half_panels(N, F, by->W2, 0);
  uint16_t *h = room_for(2 * (size_t)SHARE * F);
  if (first && second && h) SHARES(i, m, M) {
      uint16_t *inner = z + (size_t)i * F;
      half_map(m, F, K, x + (size_t)i * K, first, by->b1, inner);
      half_activate(kind, m * F, inner, h, 0);
      half_map(m, N, F, h, second, by->b2, y + (size_t)i * N);
    }
  const int32_t enough = first && second && h;
  free(first), free(second), free(h);
  return enough;
}

/* Its gradients; any may be absent. */
int32_t feed_forward_half_back(int32_t M, int32_t N, int32_t F, int32_t K, const uint16_t *x, const uint16_t *z,
                               const TwoMaps *by, int32_t kind, const uint16_t *g, uint16_t *dx, const TwoMaps *to) {
  const size_t widest = N > K ? N : K;
  uint32_t *first = dx ? half_panels(F, K, by->W1, 1) : 0, *second = half_panels(N, F, by->W2, 1);
  uint32_t *room = room_for(2 * (size_t)(SHARE + 1) * (F + widest));
  uint16_t *h = room_for(4 * (size_t)SHARE * F), *dz = h + (size_t)SHARE * F;
  const int32_t enough = (first || !dx) && second && room && h;
  if (enough) SHARES(i, m, M) {
      const uint16_t *rows = x + (size_t)i * K, *slopes = g + (size_t)i * N;
      half_map(m, F, N, slopes, second, 0, dz);
      half_activate(kind, m * F, z + (size_t)i * F, h, dz);
      half_outer(m, N, F, h, slopes, to->W2, to->b2, room, i ? ADD : SET);
      half_outer(m, F, K, rows, dz, to->W1, to->b1, room, i ? ADD : SET);
      if (dx) half_map(m, K, F, dz, first, 0, dx + (size_t)i * K);
    }
  free(first), free(second), free(room), free(h);
  return enough;
}

#else /* nobody calls them, but they are there */

int32_t attend_half(void) { return 0; }
int32_t attend_half_back(void) { return 0; }
int32_t linear_half(void) { return 0; }
int32_t linear_half_back(void) { return 0; }
int32_t feed_forward_half(void) { return 0; }
int32_t feed_forward_half_back(void) { return 0; }

#endif
