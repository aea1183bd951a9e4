/* Pictures changed by chance while a model learns (regard/data/augment.py), in C: the same bits, many times as fast.

   Letters: H and W height and width, C channels, n = H W C bytes of a picture.

   The bits are those of Pillow, so its arithmetic is: blends in floats, places in doubles. It is compiled without fused
   multiply-add (compiler.py), which rounds once where Pillow rounds twice. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define GREY 128 /* what stands where a picture was moved away */
#define BEHIND 4 /* bytes that may be read and written behind a picture: a pixel is taken as four channels */
enum { SAME, STRETCHED, EVENED, MOVED, SOLARISED, POSTERISED, COLOURED, CONTRASTED, BRIGHTENED, SHARPENED };

typedef uint8_t byte;
typedef byte bytes __attribute__((vector_size(4)));
typedef int32_t ints __attribute__((vector_size(16)));
typedef double doubles __attribute__((vector_size(32)));

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
static const ints FIRST = {24, 16, 8, 0};
#else
static const ints FIRST = {0, 8, 16, 24};
#endif

typedef struct {
  double kind, numbers[6];
} Step;

typedef struct {
  int H, W, C, n;
} Size;

static int inside(int i, int from, int to) { return i < from ? from : i > to ? to : i; }

/* Each channel by a table of its own, so that it has all of the range, or all of its values as often. */
static void by_tables(Size z, int kind, byte *x) {
  for (int c = 0; c < z.C; c++) {
    int counts[256] = {0}, low = 0, high = 255, before = 0;
    byte table[256];
    for (int i = c; i < z.n; i += z.C) counts[x[i]]++;
    while (!counts[low]) low++;
    while (!counts[high]) high--;
    int step = (z.H * z.W - counts[high]) / 255;
    if (kind == STRETCHED ? low == high : !step) continue;
    double scale = 255.0 / (high - low);
    for (int i = 0; i < 256; before += counts[i++])
      table[i] = inside(kind == STRETCHED ? (int)(i * scale - low * scale) : (step / 2 + before) / step, 0, 255);
    for (int i = c; i < z.n; i += z.C) x[i] = table[x[i]];
  }
}

static inline doubles pixel(const byte *x) {
  int32_t all;
  memcpy(&all, x, sizeof all);
  ints y = {all, all, all, all}; /* GCC takes a vector of four bytes apart one by one */
  return __builtin_convertvector(y >> FIRST & 255, doubles);
}

static inline doubles between(const byte *a, const byte *b, double share) {
  doubles value = pixel(a);
  return share == 0 ? value : value + (pixel(b) - value) * share;
}

/* Of each pixel, what was where the matrix says, between the four around it. */
static void moved(Size z, const double *m, const byte *restrict x, byte *restrict y) {
  for (int i = 0; i < z.H; i++)
    for (int j = 0; j < z.W; j++, y += z.C) {
      double u = m[0] * (j + 0.5) + m[1] * (i + 0.5) + m[2], v = m[3] * (j + 0.5) + m[4] * (i + 0.5) + m[5];
      if (!(u >= 0 && u < z.W && v >= 0 && v < z.H)) {
        memset(y, GREY, BEHIND);
        continue;
      }
      u -= 0.5, v -= 0.5;
      int left = (int)u - (u < 0), top = (int)v - (v < 0); /* the whole numbers below */
      double across = u - left, down = v - top;
      int a = inside(left, 0, z.W - 1) * z.C, b = inside(left + 1, 0, z.W - 1) * z.C;
      int next = (top + 1) * z.W * z.C; /* top is -1 or more */
      const byte *row = x + inside(top, 0, z.H - 1) * z.W * z.C;
      doubles value = between(row + a, row + b, across);
      if (down != 0 && top + 1 < z.H) value += (between(x + next + a, x + next + b, across) - value) * down;
      bytes made = __builtin_convertvector(__builtin_convertvector(value, ints), bytes);
      memcpy(y, &made, sizeof made);
    }
}

static int grey(Size z, const byte *x) {
  return z.C == 1 ? *x : (x[0] * 19595 + x[1] * 38470 + x[2] * 7471 + 0x8000) >> 16;
}

/* What a picture is blended with. */
static void degenerate(Size z, int kind, const byte *restrict x, byte *restrict y) {
  memcpy(y, x, z.n);
  if (kind == COLOURED)
    for (int i = 0; i < z.n; i += z.C)
      for (int c = 0, value = grey(z, x + i); c < z.C; c++) y[i + c] = value;
  if (kind == BRIGHTENED) memset(y, 0, z.n);
  if (kind == CONTRASTED) {
    int64_t sum = 0;
    for (int i = 0; i < z.n; i += z.C) sum += grey(z, x + i);
    memset(y, (int)((double)sum / (z.H * z.W) + 0.5), z.n);
  }
  if (kind == SHARPENED) /* blurred, but for its edges */
    for (int i = 1, row = z.W * z.C; i < z.H - 1; i++)
      for (int j = i * row + z.C; j < (i + 1) * row - z.C; j++) {
        const byte *a = x + j - row, *b = x + j, *c = x + j + row;
        uint16_t sum = a[-z.C] + a[0] + a[z.C] + b[-z.C] + 5 * b[0] + b[z.C] + c[-z.C] + c[0] + c[z.C];
        y[j] = (uint16_t)(2 * sum + 13) / 26; /* a thirteenth, rounded */
      }
}

/* From y, over x, so much further. */
static void blended(int n, float share, byte *restrict x, const byte *restrict y) {
  for (int i = 0; i < n; i++) {
    float value = y[i] + share * (x[i] - y[i]);
    x[i] = value <= 0 ? 0 : value >= 255 ? 255 : (int)value;
  }
}

/* B pictures, in place; of each a plan of `steps` places among the steps, how far down and to the right it is cut out,
   and whether it is mirrored. `room` is for two pictures, and what is behind them. */
void change_pictures(int32_t B, int32_t H, int32_t W, int32_t C, byte *pixels, int32_t steps, const int32_t *plan,
                     const Step *of, byte *room) {
  Size z = {H, W, C, H * W * C};
  for (; B--; pixels += z.n, plan += steps + 3) {
    byte *x = room, *y = room + z.n + BEHIND;
    memcpy(x, pixels, z.n);
    for (int k = 0; k < steps; k++) {
      const Step *step = of + plan[k];
      int kind = (int)step->kind, number = (int)step->numbers[0];
      if (kind == STRETCHED || kind == EVENED) by_tables(z, kind, x);
      if (kind == SOLARISED)
        for (int i = 0; i < z.n; i++) x[i] = x[i] < number ? x[i] : 255 - x[i];
      if (kind == POSTERISED)
        for (int i = 0; i < z.n; i++) x[i] &= number;
      if (kind >= COLOURED) {
        degenerate(z, kind, x, y);
        blended(z.n, (float)step->numbers[0], x, y);
      }
      if (kind == MOVED) {
        byte *old = x;
        moved(z, step->numbers, x, y);
        x = y, y = old;
      }
    }
    memset(pixels, 0, z.n);
    int down = plan[steps], right = plan[steps + 1], mirrored = plan[steps + 2];
    int first = right < 0 ? -right : 0, wide = W - abs(right);
    for (int i = down < 0 ? -down : 0; wide > 0 && i < H && i + down < H; i++) {
      const byte *from = x + ((i + down) * W + first + right) * C;
      byte *to = pixels + (i * W + (mirrored ? W - first - 1 : first)) * C;
      if (!mirrored) memcpy(to, from, wide * C);
      else
        for (int j = 0; j < wide; j++)
          for (int c = 0; c < C; c++) to[c - j * C] = from[j * C + c];
    }
  }
}
