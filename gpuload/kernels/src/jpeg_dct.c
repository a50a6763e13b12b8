// The inverse DCT: libjpeg's accurate integer transform (jidctint.c), at full and at reduced size, on whole rows at a time.

#include "jpeg.h"

typedef int32_t I32x8 __attribute__((vector_size(32)));
typedef int32_t I32x4 __attribute__((vector_size(16)));
typedef int64_t I64x4 __attribute__((vector_size(32)));

enum { FRACTION_BITS = 13, KEPT_BITS = 2 };

// A factor as a fixed-point number, rounded to the nearest.
#define FIXED(factor) ((int32_t)((factor) * (1 << FRACTION_BITS) + ((factor) < 0 ? -0.5 : 0.5)))

// Shifted right, rounded to the nearest.
#define ROUNDED(vector, bits) (((vector) + (1 << ((bits) - 1))) >> (bits))

// One direction of the 8-point transform of eight vectors.
static inline void transform_8(const I32x8 in[8], I32x8 out[8]) {
    I32x8 turned = (in[2] + in[6]) * FIXED(0.541196100);
    I32x8 low = turned - in[6] * FIXED(1.847759065);
    I32x8 high = turned + in[2] * FIXED(0.765366865);
    I32x8 first = (in[0] + in[4]) << FRACTION_BITS;
    I32x8 second = (in[0] - in[4]) << FRACTION_BITS;
    I32x8 even[4] = {first + high, second + low, second - low, first - high};
    I32x8 both = (in[7] + in[3] + in[5] + in[1]) * FIXED(1.175875602);
    I32x8 outer = (in[7] + in[1]) * FIXED(-0.899976223);
    I32x8 inner = (in[5] + in[3]) * FIXED(-2.562915447);
    I32x8 left = (in[7] + in[3]) * FIXED(-1.961570560) + both;
    I32x8 right = (in[5] + in[1]) * FIXED(-0.390180644) + both;
    I32x8 odd[4] = {
        in[1] * FIXED(1.501321110) + outer + right,
        in[3] * FIXED(3.072711026) + inner + left,
        in[5] * FIXED(2.053119869) + inner + right,
        in[7] * FIXED(0.298631336) + outer + left,
    };
    for (int index = 0; index < 4; index++) {
        out[index] = even[index] + odd[index];
        out[7 - index] = even[index] - odd[index];
    }
}

// The columns of four rows, each with the fourth after it: columns 0 and 4, 1 and 5, 2 and 6, 3 and 7.
static inline void pair_columns(const I32x8 rows[4], I32x8 pairs[4]) {
    I32x8 upper_low = __builtin_shufflevector(rows[0], rows[1], 0, 8, 1, 9, 4, 12, 5, 13);
    I32x8 upper_high = __builtin_shufflevector(rows[0], rows[1], 2, 10, 3, 11, 6, 14, 7, 15);
    I32x8 lower_low = __builtin_shufflevector(rows[2], rows[3], 0, 8, 1, 9, 4, 12, 5, 13);
    I32x8 lower_high = __builtin_shufflevector(rows[2], rows[3], 2, 10, 3, 11, 6, 14, 7, 15);
    pairs[0] = __builtin_shufflevector(upper_low, lower_low, 0, 1, 8, 9, 4, 5, 12, 13);
    pairs[1] = __builtin_shufflevector(upper_low, lower_low, 2, 3, 10, 11, 6, 7, 14, 15);
    pairs[2] = __builtin_shufflevector(upper_high, lower_high, 0, 1, 8, 9, 4, 5, 12, 13);
    pairs[3] = __builtin_shufflevector(upper_high, lower_high, 2, 3, 10, 11, 6, 7, 14, 15);
}

static inline void transpose(const I32x8 rows[8], I32x8 columns[8]) {
    I32x8 upper[4];
    I32x8 lower[4];
    pair_columns(rows, upper);
    pair_columns(rows + 4, lower);
    for (int column = 0; column < 4; column++) {
        columns[column] = __builtin_shufflevector(upper[column], lower[column], 0, 1, 2, 3, 8, 9, 10, 11);
        columns[column + 4] = __builtin_shufflevector(upper[column], lower[column], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

static inline void load_rows(const int32_t *coefficients, I32x8 rows[8]) {
    memcpy(rows, coefficients, 64 * sizeof *coefficients);
}

// bits: that the sums of the second direction have behind the point.
static inline I32x8 levels_of(I32x8 sums, int bits) { return CLAMPED_LEVELS(ROUNDED(sums, bits) + 128); }

static void inverse_dct_8(const int32_t *coefficients, uint8_t *samples, int64_t stride) {
    I32x8 rows[8];
    I32x8 half[8];
    I32x8 columns[8];
    load_rows(coefficients, rows);
    transform_8(rows, half);
    for (int row = 0; row < 8; row++)
        half[row] = ROUNDED(half[row], FRACTION_BITS - KEPT_BITS);
    transpose(half, rows);
    transform_8(rows, columns);
    for (int column = 0; column < 8; column++)
        columns[column] = levels_of(columns[column], FRACTION_BITS + KEPT_BITS + 3);
    // A lane is a row now: four columns, side by side, make one word of it, and two words a row.
    I32x8 left = columns[0] | columns[1] << 8 | columns[2] << 16 | columns[3] << 24;
    I32x8 right = columns[4] | columns[5] << 8 | columns[6] << 16 | columns[7] << 24;
    I64x4 upper = (I64x4)__builtin_shufflevector(left, right, 0, 8, 1, 9, 2, 10, 3, 11);
    I64x4 lower = (I64x4)__builtin_shufflevector(left, right, 4, 12, 5, 13, 6, 14, 7, 15);
    for (int row = 0; row < 4; row++) {
        int64_t above = upper[row];
        int64_t below = lower[row];
        memcpy(samples + row * stride, &above, 8);
        memcpy(samples + (row + 4) * stride, &below, 8);
    }
}

// The smaller transforms need sums of rows, and then of columns, times factors. So does libjpeg (jidctred.c).
#define WEIGH(rows, a, b, c, d, e, f, g, h)                                                                       \
    ((rows)[0] * FIXED(a) + (rows)[1] * FIXED(b) + (rows)[2] * FIXED(c) + (rows)[3] * FIXED(d) + (rows)[4] * FIXED(e) + \
     (rows)[5] * FIXED(f) + (rows)[6] * FIXED(g) + (rows)[7] * FIXED(h))

// The same of the columns of four rows: pairs of columns, with one product for two.
#define FACTORS(a, b) {FIXED(a), FIXED(a), FIXED(a), FIXED(a), FIXED(b), FIXED(b), FIXED(b), FIXED(b)}
#define WEIGH_PAIRS(pairs, a, b, c, d, e, f, g, h)                                                                     \
    sum_halves(                                                                                                       \
        (pairs)[0] * (I32x8)FACTORS(a, e) + (pairs)[1] * (I32x8)FACTORS(b, f) + (pairs)[2] * (I32x8)FACTORS(c, g) +      \
        (pairs)[3] * (I32x8)FACTORS(d, h)                                                                              \
    )

static inline I32x4 sum_halves(I32x8 sums) {
    return __builtin_shufflevector(sums, sums, 0, 1, 2, 3) + __builtin_shufflevector(sums, sums, 4, 5, 6, 7);
}

static inline I32x4 small_levels_of(I32x4 sums, int bits) { return CLAMPED_LEVELS(ROUNDED(sums, bits) + 128); }

// Factors of the eight coefficients, for an even and an odd part. The fifth one is 0 in the transform to 4 samples.
#define MEAN_4 2.0, 0, 0, 0, 0, 0, 0, 0
#define TURNED_4 0, 0, 1.847759065, 0, 0, 0, -0.765366865, 0
#define INNER_4 0, 1.061594337, 0, -2.172734803, 0, 1.451774981, 0, -0.211164243
#define OUTER_4 0, 2.562915447, 0, 0.899976223, 0, -0.601344887, 0, -0.509795579
#define MEAN_2 4.0, 0, 0, 0, 0, 0, 0, 0
#define ODD_2 0, 3.624509785, 0, -1.272758580, 0, 0.850430095, 0, -0.720959822
#define APPLY(function, values, factors) function(values, factors)

static void inverse_dct_4(const int32_t *coefficients, uint8_t *samples, int64_t stride) {
    I32x8 rows[8];
    I32x8 half[4];
    I32x8 pairs[4];
    load_rows(coefficients, rows);
    I32x8 mean = APPLY(WEIGH, rows, MEAN_4);
    I32x8 turned = APPLY(WEIGH, rows, TURNED_4);
    I32x8 inner = APPLY(WEIGH, rows, INNER_4);
    I32x8 outer = APPLY(WEIGH, rows, OUTER_4);
    half[0] = ROUNDED(mean + turned + outer, FRACTION_BITS - KEPT_BITS + 1);
    half[1] = ROUNDED(mean - turned + inner, FRACTION_BITS - KEPT_BITS + 1);
    half[2] = ROUNDED(mean - turned - inner, FRACTION_BITS - KEPT_BITS + 1);
    half[3] = ROUNDED(mean + turned - outer, FRACTION_BITS - KEPT_BITS + 1);
    pair_columns(half, pairs);
    I32x4 column_mean = APPLY(WEIGH_PAIRS, pairs, MEAN_4);
    I32x4 column_turned = APPLY(WEIGH_PAIRS, pairs, TURNED_4);
    I32x4 column_inner = APPLY(WEIGH_PAIRS, pairs, INNER_4);
    I32x4 column_outer = APPLY(WEIGH_PAIRS, pairs, OUTER_4);
    int bits = FRACTION_BITS + KEPT_BITS + 3 + 1;
    I32x4 first = small_levels_of(column_mean + column_turned + column_outer, bits);
    I32x4 second = small_levels_of(column_mean - column_turned + column_inner, bits);
    I32x4 third = small_levels_of(column_mean - column_turned - column_inner, bits);
    I32x4 fourth = small_levels_of(column_mean + column_turned - column_outer, bits);
    I32x4 words = first | second << 8 | third << 16 | fourth << 24;
    int32_t lanes[4];
    memcpy(lanes, &words, sizeof lanes);
    for (int row = 0; row < 4; row++)
        memcpy(samples + row * stride, &lanes[row], 4);
}

static void inverse_dct_2(const int32_t *coefficients, uint8_t *samples, int64_t stride) {
    I32x8 rows[8];
    I32x8 half[4] = {0};
    I32x8 pairs[4];
    load_rows(coefficients, rows);
    I32x8 mean = APPLY(WEIGH, rows, MEAN_2);
    I32x8 odd = APPLY(WEIGH, rows, ODD_2);
    half[0] = ROUNDED(mean + odd, FRACTION_BITS - KEPT_BITS + 2);
    half[1] = ROUNDED(mean - odd, FRACTION_BITS - KEPT_BITS + 2);
    pair_columns(half, pairs);
    I32x4 column_mean = APPLY(WEIGH_PAIRS, pairs, MEAN_2);
    I32x4 column_odd = APPLY(WEIGH_PAIRS, pairs, ODD_2);
    int bits = FRACTION_BITS + KEPT_BITS + 3 + 2;
    I32x4 words = small_levels_of(column_mean + column_odd, bits) | small_levels_of(column_mean - column_odd, bits) << 8;
    int32_t lanes[4];
    memcpy(lanes, &words, sizeof lanes);
    for (int row = 0; row < 2; row++)
        memcpy(samples + row * stride, &lanes[row], 2);
}

// A block of one level.
static void fill_block(int32_t dc, int64_t size, uint8_t *samples, int64_t stride) {
    uint64_t level = (uint64_t)clamp(((dc + 4) >> 3) + 128, 0, 255);
    uint64_t levels = level * 0x0101010101010101;
    if (size == 8) {
        for (int row = 0; row < 8; row++)
            memcpy(samples + row * stride, &levels, 8);
        return;
    }
    for (int64_t row = 0; row < size; row++)
        for (int64_t x = 0; x < size; x++)
            samples[row * stride + x] = (uint8_t)level;
}

void inverse_dct(const int32_t *coefficients, int64_t size, bool has_ac, uint8_t *samples, int64_t stride) {
    if (!has_ac || size == 1)
        fill_block(coefficients[0], size, samples, stride);
    else if (size == 8)
        inverse_dct_8(coefficients, samples, stride);
    else if (size == 4)
        inverse_dct_4(coefficients, samples, stride);
    else
        inverse_dct_2(coefficients, samples, stride);
}
