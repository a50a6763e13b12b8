// Operations on the neighbours of a pixel: sharpness (3 × 3), and Gaussian blur, one direction after the other.

#include "operations.h"

enum { THIRTEENTH = 5042 };  // of 1 << 16: right for quotients up to 255

typedef float F32x16 __attribute__((vector_size(64)));
typedef int32_t I32x16 __attribute__((vector_size(64)));
typedef uint32_t U32x16 __attribute__((vector_size(64)));
typedef int16_t I16x16 __attribute__((vector_size(32)));
typedef uint16_t U16x16 __attribute__((vector_size(32)));
typedef uint8_t U8x16 __attribute__((vector_size(16)));

enum { LANES = 16 };

static inline U16x16 load_sums(const uint16_t *sums) {
    U16x16 loaded;
    memcpy(&loaded, sums, sizeof loaded);
    return loaded;
}

// `level_of` each value, which is below 2**31.
static inline U8x16 levels_of(F32x16 values) {
    I32x16 levels = __builtin_convertvector(values, I32x16);
    levels = __builtin_elementwise_max(levels, (I32x16){0});
    levels = __builtin_elementwise_min(levels, (I32x16){0} + 255);
    return __builtin_convertvector(levels, U8x16);
}

// LANES pixels of a long line, blended with their blur. sums: of the pixels above, here and below, from the pixel before on.
static inline void sharpen_lanes(const uint8_t *source, const uint16_t *sums, float rest, uint8_t *result) {
    U8x16 levels;
    memcpy(&levels, source, sizeof levels);
    U16x16 here = __builtin_convertvector(levels, U16x16);
    U16x16 total = load_sums(sums) + load_sums(sums + 1) + load_sums(sums + 2) + 4 * here + 6;
    U16x16 smooth = __builtin_convertvector(__builtin_convertvector(total, U32x16) * THIRTEENTH >> 16, U16x16);
    I32x16 difference = __builtin_convertvector((I16x16)(smooth - here), I32x16);
    F32x16 sharp = __builtin_convertvector(difference, F32x16) * rest;
    levels = levels_of(__builtin_convertvector(__builtin_convertvector(levels, I32x16), F32x16) + sharp);
    memcpy(result, &levels, sizeof levels);
}

// Pixels begin..end-1 of a plane as one long line, which leaves one rest to vectors, not many.
static void sharpen_line(
    const uint8_t *restrict source, const uint16_t *restrict sums, float rest, int64_t begin, int64_t end,
    uint8_t *restrict result
) {
    if (end - begin >= LANES) {
        for (int64_t pixel = begin; pixel < end; pixel += LANES) {
            int64_t first = min_of(pixel, end - LANES);  // the last vector overlaps the one before
            sharpen_lanes(source + first, sums + first - 1, rest, result + first);
        }
        return;
    }
    uint8_t levels[LANES] = {0};
    for (int64_t pixel = begin; pixel < end; pixel++)
        levels[pixel - begin] = source[pixel];
    sharpen_lanes(levels, sums + begin - 1, rest, levels);
    for (int64_t pixel = begin; pixel < end; pixel++)
        result[pixel] = levels[pixel - begin];
}

// Blends with a blur of weights 1, 5 in the centre, over 13; a border of one pixel stays as it is.
void sharpen(const Image *image, int64_t steps) {
    (void)steps;
    int64_t width = image->width;
    int64_t pixels = pixels_of(image);
    uint16_t *restrict sums = (uint16_t *)(void *)image->scratch;
    for (int64_t channel = 0; channel < image->channels; channel++) {
        const uint8_t *restrict source = image->source + channel * pixels;
        uint8_t *restrict result = image->result + channel * pixels;
        for (int64_t pixel = width; pixel < pixels - width; pixel++)
            sums[pixel] = (uint16_t)(source[pixel - width] + source[pixel] + source[pixel + width]);
        sharpen_line(source, sums, 1.0f - image->numbers[0], width + 1, pixels - width - 1, result);
        memcpy(result, source, (size_t)width);
        memcpy(result + pixels - width, source + pixels - width, (size_t)width);
        for (int64_t row = 0; row < pixels; row += width) {
            result[row] = source[row];
            result[row + width - 1] = source[row + width - 1];
        }
    }
}

// e to the power of a number up to 0, the same on every processor, which a C library's is not: by its Taylor series after
// the number was halved until it is small.
static double exponential(double number) {
    int halvings = 0;
    for (; number < -0.25 && halvings < 40; halvings++)
        number *= 0.5;
    double sum = 1.0;
    for (int power = 16; power > 0; power--)
        sum = 1.0 + sum * number / power;
    for (; halvings > 0; halvings--)
        sum *= sum;
    return sum;
}

// The normal density at 0..reach, over its sum. Beyond five sigmas, weights are less than a millionth of the sum, and left
// out. Returns the reach.
static int64_t fill_density(float sigma, float kernel_size, float *density) {
    int64_t reach = min_of((int64_t)ceilf(5.0f * sigma), (int64_t)kernel_size / 2);
    float total = 0.0f;
    for (int64_t distance = 0; distance <= reach; distance++) {
        float exponent = -0.5f * ((float)distance / sigma) * ((float)distance / sigma);
        density[distance] = (float)exponential(exponent);
        total += distance == 0 ? density[distance] : 2.0f * density[distance];
    }
    for (int64_t distance = 0; distance <= reach; distance++)
        density[distance] /= total;
    return reach;
}

// padded: memory for (width + 2 reach) floats.
static void blur_row(
    const uint8_t *restrict levels, int64_t width, int64_t reach, const float *density, float *restrict padded,
    float *restrict sums
) {
    for (int64_t x = 0; x < width; x++)
        padded[reach + x] = levels[x];
    for (int64_t x = 0; x < reach; x++) {
        padded[x] = levels[reach - x];
        padded[reach + width + x] = levels[width - 2 - x];
    }
    for (int64_t x = 0; x < width; x++)
        sums[x] = density[0] * padded[reach + x];
    for (int64_t distance = 1; distance <= reach; distance++) {
        const float *restrict before = padded + reach - distance;
        const float *restrict after = padded + reach + distance;
        float weight = density[distance];
        for (int64_t x = 0; x < width; x++)
            sums[x] = fmaf(weight, before[x] + after[x], sums[x]);
    }
}

// A row or column outside of the image, reflected at its edge.
static int64_t reflected(int64_t place, int64_t size) {
    int64_t from_edge = place < 0 ? -place : place;
    return from_edge < size ? from_edge : 2 * size - 2 - from_edge;
}

static void blur_column_pass(
    const float *rows, int64_t row, const Image *image, int64_t reach, const float *density, float *restrict sums
) {
    int64_t width = image->width;
    const float *restrict middle = rows + row * width;
    for (int64_t x = 0; x < width; x++)
        sums[x] = density[0] * middle[x];
    for (int64_t distance = 1; distance <= reach; distance++) {
        const float *restrict above = rows + reflected(row - distance, image->height) * width;
        const float *restrict below = rows + reflected(row + distance, image->height) * width;
        float weight = density[distance];
        for (int64_t x = 0; x < width; x++)
            sums[x] = fmaf(weight, above[x] + below[x], sums[x]);
    }
}

void blur(const Image *image, int64_t steps) {
    (void)steps;
    enum { DENSITY_BYTES = 4096 };  // a kernel size is at most 2,047
    int64_t height = image->height;
    int64_t width = image->width;
    float *rows = (float *)(void *)image->scratch;  // one channel after the pass along the rows
    float *sums = rows + height * width;            // one row
    float *density_x = sums + width;
    float *density_y = density_x + DENSITY_BYTES / sizeof(float);
    float *padded = density_y + DENSITY_BYTES / sizeof(float);
    int64_t reach_x = fill_density(image->numbers[0], image->numbers[1], density_x);
    int64_t reach_y = fill_density(image->numbers[0], image->numbers[2], density_y);
    for (int64_t channel = 0; channel < image->channels; channel++) {
        int64_t first = channel * height * width;
        for (int64_t row = 0; row < height; row++) {
            const uint8_t *levels = image->source + first + row * width;
            blur_row(levels, width, reach_x, density_x, padded, rows + row * width);
        }
        for (int64_t row = 0; row < height; row++) {
            blur_column_pass(rows, row, image, reach_y, density_y, sums);
            uint8_t *restrict result = image->result + first + row * width;
            for (int64_t x = 0; x < width; x++)
                result[x] = level_of(rintf(sums[x]));
        }
    }
}
