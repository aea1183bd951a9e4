/* Vectors of 16 numbers, for both C files. They are those of GCC and Clang: the compiler maps them to what the processor
   has. */

#ifndef REGARD_VECTORS
#define REGARD_VECTORS

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#define L 16      /* numbers in a vector */
#define PANEL 32  /* columns of a product that lie together: two vectors */
/* Numbers in a register, and rows that share one reading of a panel, so that their sums stay in registers: 12 x 2, 3 x 4
   or 1 x 8 of them. GCC takes vectors larger than a register through memory, which made products 12 times as slow. */
#if defined(__AVX512F__)
#define WIDTH 16
#define TILE 12
#elif defined(__AVX__)
#define WIDTH 8
#define TILE 3
#else
#define WIDTH 4
#define TILE 1
#endif
#define PARTS (PANEL / WIDTH) /* registers for a row of a panel */
#define SUMS ((TILE > 4 ? TILE : 4) * PARTS)
#define INLINE static inline __attribute__((always_inline))
#define NEAR(p) __builtin_prefetch(p, 0, 2) /* as far as the second cache; there need be nothing at p */

typedef float vec __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(64), aligned(4), may_alias));
typedef float part __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t part_ints __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef uint32_t part_bits __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef uint16_t part_halves __attribute__((vector_size(2 * WIDTH), aligned(2), may_alias));

/* bf16 is the first half of a float. */
INLINE part widened(const uint16_t *p) {
  return (part)(__builtin_convertvector(*(const part_halves *)p, part_bits) << 16);
}
INLINE float widened_one(uint16_t x) {
  uint32_t bits = (uint32_t)x << 16;
  float y;
  memcpy(&y, &bits, sizeof y);
  return y;
}

INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec x) { *(vec *)p = x; }
/* The first n of them, if they are not all there; zeros for the others. */
INLINE vec load_some(const float *p, int n) {
#ifdef __AVX512F__
  return (vec)_mm512_maskz_loadu_ps(n < L ? (1 << n) - 1 : 0xFFFF, p);
#else
  if (n >= L) return load(p);
  vec x = {};
  memcpy(&x, p, sizeof(float) * n);
  return x;
#endif
}
INLINE void store_some(float *p, vec x, int n) {
#ifdef __AVX512F__
  _mm512_mask_storeu_ps(p, n < L ? (1 << n) - 1 : 0xFFFF, (__m512)x);
#else
  if (n >= L)
    store(p, x);
  else
    memcpy(p, &x, sizeof(float) * n);
#endif
}
INLINE vec all(float x) { return (vec){} + x; }
/* Where one of them is no number, the second. */
#ifdef __AVX512F__
INLINE vec larger(vec a, vec b) { return (vec)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vec smaller(vec a, vec b) { return (vec)_mm512_min_ps((__m512)a, (__m512)b); }
#else
INLINE vec larger(vec a, vec b) { return (vec)(((a > b) & (ints)a) | (~(a > b) & (ints)b)); }
INLINE vec smaller(vec a, vec b) { return (vec)(((a < b) & (ints)a) | (~(a < b) & (ints)b)); }
#endif

INLINE int any(ints mask) {
#ifdef __AVX512F__
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask);
#else
  int64_t m[8];
  memcpy(m, &mask, sizeof m);
  return (m[0] | m[1] | m[2] | m[3] | m[4] | m[5] | m[6] | m[7]) != 0;
#endif
}

/* A bit for each of 16 numbers, and a vector's numbers where the bits are set, with 0 elsewhere. */
#if defined(__AVX512BW__) && defined(__AVX512VL__)
INLINE uint16_t not_below(int16_t least, const int16_t *x) {
  return _mm256_cmp_epi16_mask(_mm256_loadu_si256((const __m256i *)x), _mm256_set1_epi16(least), _MM_CMPINT_NLT);
}
INLINE vec where(uint16_t bits, vec x) { return (vec)_mm512_maskz_mov_ps(bits, (__m512)x); }
#else
INLINE uint16_t not_below(int16_t least, const int16_t *x) {
  uint16_t bits = 0;
  for (int i = 0; i < L; i++) bits |= (x[i] >= least) << i;
  return bits;
}
INLINE vec where(uint16_t bits, vec x) {
  const ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, all_bits = (ints){} + bits;
  return (vec)(-((all_bits >> lane) & 1) & (ints)x);
}
#endif

/* Lanes in the order a, b, a, b, ... of pieces of `n`: of the first pieces of each pair, and of the second. */
#define PIECES(n, f) ((f) / (n) % 2 * L + (f) / (2 * (n)) * 2 * (n) + (f) % (n))
#define LANES(n, o)                                                                                                  \
  PIECES(n, 0) + o, PIECES(n, 1) + o, PIECES(n, 2) + o, PIECES(n, 3) + o, PIECES(n, 4) + o, PIECES(n, 5) + o,        \
      PIECES(n, 6) + o, PIECES(n, 7) + o, PIECES(n, 8) + o, PIECES(n, 9) + o, PIECES(n, 10) + o, PIECES(n, 11) + o,  \
      PIECES(n, 12) + o, PIECES(n, 13) + o, PIECES(n, 14) + o, PIECES(n, 15) + o
#ifdef __clang__
#define SHUFFLE(n, a, b, o) __builtin_shufflevector(a, b, LANES(n, o))
#else /* GCC has the other one since version 12 only */
#define SHUFFLE(n, a, b, o) __builtin_shuffle(a, b, (ints){LANES(n, o)})
#endif
#define FOLD(n, a, b) (SHUFFLE(n, a, b, 0) + SHUFFLE(n, a, b, n))

/* The sums of 16 vectors, as one vector. */
INLINE vec sums(const vec *x) {
  vec a[8], b[4];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) a[i] = FOLD(8, x[i], x[i + 8]);
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) b[i] = FOLD(4, a[i], a[i + 4]);
  vec c0 = FOLD(2, b[0], b[2]), c1 = FOLD(2, b[1], b[3]);
  return FOLD(1, c0, c1);
}

INLINE float total(vec x) {
  x = FOLD(8, x, x);
  x = FOLD(4, x, x);
  x = FOLD(2, x, x);
  x = FOLD(1, x, x);
  return x[0];
}

INLINE float largest(vec x) {
  x = larger(SHUFFLE(8, x, x, 0), SHUFFLE(8, x, x, 8));
  x = larger(SHUFFLE(4, x, x, 0), SHUFFLE(4, x, x, 4));
  x = larger(SHUFFLE(2, x, x, 0), SHUFFLE(2, x, x, 2));
  x = larger(SHUFFLE(1, x, x, 0), SHUFFLE(1, x, x, 1));
  return x[0];
}

/* e^x to about 2 units in the last place; 0 below -87. x = n ln 2 + r, and a polynomial for e^r. */
INLINE vec exponential(vec x) {
  ints small = x < all(-87.0f);
  x = smaller(all(88.0f), larger(all(-87.0f), x));
  const vec shift = all(12582912.0f); /* 1.5 · 2^23: adding it rounds to a whole number */
  vec n = (x * 1.44269504f + shift) - shift;
  vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
  vec p = all(1.3981999e-3f);
  p = p * r + 8.3334519e-3f;
  p = p * r + 4.1665796e-2f;
  p = p * r + 1.6666665e-1f;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  ints power = (__builtin_convertvector(n, ints) + 127) << 23;
  return (vec)(~small & (ints)(p * (vec)power));
}

/* Φ(-|x|), and `bell`, e^(-x²/2): their ratio is a polynomial of t = 1 / (1 + 0.32 |x|), to 3e-7 of it. */
INLINE vec beyond(vec x, vec t, vec *bell) {
  vec p = all(-0.128094098f);
  p = p * t + 0.489174429f;
  p = p * t - 0.255753026f;
  p = p * t + 0.307772013f;
  p = p * t + 0.0821858606f;
  p = p * t + 4.71495473e-3f;
  *bell = exponential(-0.5f * (x * x));
  return *bell * p;
}

/* What a sigmoid is taken of, where an activation is x times one: silu (2), gelu by tanh (4) or by sigmoid (6). */
INLINE vec inside(int kind, vec x) {
  if (kind == 4) return 1.59576912f * (x + 0.044715f * (x * x * x)); /* (1 + tanh x) / 2 is a sigmoid of 2 x */
  if (kind == 6) return 1.702f * x;
  return x;
}

#endif
