// Which part of an image is decoded, its layout in memory, and its colors.

#include "jpeg.h"

typedef int32_t I32x32 __attribute__((vector_size(128)));
typedef int16_t I16x32 __attribute__((vector_size(64)));
typedef int16_t I16x16 __attribute__((vector_size(32)));
typedef uint8_t U8x64 __attribute__((vector_size(64)));
typedef uint8_t U8x32 __attribute__((vector_size(32)));
typedef uint8_t U8x16 __attribute__((vector_size(16)));

enum {
    PIXELS = 32,    // at a time; so many may be written after the last one
    PAD = 32,       // bytes before and after each row of a plane
    KEPT_MCUS = 2,  // rows of MCUs in a plane: chroma is interpolated between the current one and the one before
    COLOR_BITS = 16,
};

// Colors: JFIF 1.02, in libjpeg's fixed-point numbers.

#define FIXED(factor) ((int32_t)((factor) * (1 << COLOR_BITS) + ((factor) < 0 ? -0.5 : 0.5)))

// Chroma, -128 to 127, times a factor, rounded to the nearest. whole: the whole number nearest to the factor. The high half of
// a product is one instruction, without vectors of int32; for the rounding, chroma is doubled before, and the product halved
// after it.
static inline I16x32 multiplied(I16x32 chroma, int32_t factor, int32_t whole) {
    I32x32 doubled = __builtin_convertvector(chroma * 2, I32x32) * (factor - (whole << COLOR_BITS)) >> COLOR_BITS;
    return chroma * (int16_t)whole + ((__builtin_convertvector(doubled, I16x32) + 1) >> 1);
}

// The order that makes 16 pixels of three planes, of which `two` holds red and green, and `rest` blue.
#define PIXEL(n) n, n + 16, n + 32
#define SIXTEEN_PIXELS                                                                                        \
    PIXEL(0), PIXEL(1), PIXEL(2), PIXEL(3), PIXEL(4), PIXEL(5), PIXEL(6), PIXEL(7), PIXEL(8), PIXEL(9), PIXEL(10), \
        PIXEL(11), PIXEL(12), PIXEL(13), PIXEL(14), PIXEL(15)
#define NOTHING_4 -1, -1, -1, -1
#define NOTHING_16 NOTHING_4, NOTHING_4, NOTHING_4, NOTHING_4
#define FIRST_16 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#define SECOND_16 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31

static inline void store_16_pixels(U8x16 red, U8x16 green, U8x16 blue, uint8_t *rgb) {
    U8x32 two = __builtin_shufflevector(red, green, FIRST_16, SECOND_16);
    U8x32 rest = __builtin_shufflevector(blue, blue, FIRST_16, NOTHING_16);
    U8x64 pixels = __builtin_shufflevector(two, rest, SIXTEEN_PIXELS, NOTHING_16);
    memcpy(rgb, &pixels, 48);
}

static inline void store_pixels(U8x32 red, U8x32 green, U8x32 blue, uint8_t *rgb) {
    // Half of them at a time, since only AVX-512 shuffles longer vectors of bytes at once.
    store_16_pixels(
        __builtin_shufflevector(red, red, FIRST_16), __builtin_shufflevector(green, green, FIRST_16),
        __builtin_shufflevector(blue, blue, FIRST_16), rgb
    );
    store_16_pixels(
        __builtin_shufflevector(red, red, SECOND_16), __builtin_shufflevector(green, green, SECOND_16),
        __builtin_shufflevector(blue, blue, SECOND_16), rgb + 48
    );
}

static inline U8x32 as_levels(I16x32 values) { return __builtin_convertvector(CLAMPED_LEVELS(values), U8x32); }

static inline I16x32 load_32(const uint8_t *levels) {
    U8x32 loaded;
    memcpy(&loaded, levels, sizeof loaded);
    return __builtin_convertvector(loaded, I16x32);
}

static inline I16x16 load_16(const uint8_t *levels) {
    U8x16 loaded;
    memcpy(&loaded, levels, sizeof loaded);
    return __builtin_convertvector(loaded, I16x16);
}

// How the chroma of pixels is made of a component's samples.
enum Upsampling { SAME, REPEATED, BETWEEN_TWO, BETWEEN_FOUR };

// Of two rows of samples of a component, nearer and farther: the chroma of 32 pixels. libjpeg's "fancy upsampling"
// (jdsample.c): three parts of the nearer sample and one of the farther.
static inline I16x32 chroma_of(const uint8_t *near, const uint8_t *far, enum Upsampling upsampling) {
    if (upsampling == SAME)
        return load_32(near) - 128;
    if (upsampling == REPEATED) {
        I16x16 samples = load_16(near);
        I16x32 repeated = __builtin_shufflevector(
            samples, samples, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13,
            14, 14, 15, 15
        );
        return repeated - 128;
    }
    I16x16 before = load_16(near - 1);
    I16x16 here = load_16(near);
    I16x16 after = load_16(near + 1);
    int bits = 2;
    int left_half = 1;
    int right_half = 2;
    if (upsampling == BETWEEN_FOUR) {
        before = before * 3 + load_16(far - 1);
        here = here * 3 + load_16(far);
        after = after * 3 + load_16(far + 1);
        bits = 4;
        left_half = 8;
        right_half = 7;
    }
    I16x16 left = (here * 3 + before + (int16_t)left_half) >> bits;
    I16x16 right = (here * 3 + after + (int16_t)right_half) >> bits;
    I16x32 interpolated = __builtin_shufflevector(
        left, right, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29,
        14, 30, 15, 31
    );
    return interpolated - 128;
}

// Where the samples of a row of pixels are.
typedef struct {
    const uint8_t *luma, *blue_near, *blue_far, *red_near, *red_far;
} SampleRows;

static inline void convert_row(const SampleRows *rows, int64_t width, enum Upsampling upsampling, uint8_t *rgb) {
    for (int64_t x = 0; x < width; x += PIXELS) {
        int64_t sample = upsampling == SAME ? x : x / 2;
        I16x32 luma = load_32(rows->luma + x);
        I16x32 blue = chroma_of(rows->blue_near + sample, rows->blue_far + sample, upsampling);
        I16x32 red = chroma_of(rows->red_near + sample, rows->red_far + sample, upsampling);
        I32x32 less_green = __builtin_convertvector(blue, I32x32) * FIXED(-0.34414) +
                            __builtin_convertvector(red, I32x32) * FIXED(-0.71414);
        less_green = (less_green + (1 << (COLOR_BITS - 1))) >> COLOR_BITS;
        U8x32 reds = as_levels(luma + multiplied(red, FIXED(1.402), 1));
        U8x32 greens = as_levels(luma + __builtin_convertvector(less_green, I16x32));
        U8x32 blues = as_levels(luma + multiplied(blue, FIXED(1.772), 2));
        store_pixels(reds, greens, blues, rgb + 3 * x);
    }
}

static void convert_gray_row(const uint8_t *luma, int64_t width, uint8_t *rgb) {
    for (int64_t x = 0; x < width; x += PIXELS) {
        U8x32 levels;
        memcpy(&levels, luma + x, sizeof levels);
        store_pixels(levels, levels, levels, rgb + 3 * x);
    }
}

// A row of the component, which is in the plane.
static uint8_t *plane_row(const Plane *plane, int64_t y) {
    return plane->samples + ((y - plane->top) & (plane->rows - 1)) * plane->stride;
}

void convert_rows(const Frame *frame, const Part *part, int64_t begin, int64_t end, uint8_t *pixels) {
    const Plane *blue = &part->blue;
    const Plane *red = &part->red;
    bool is_smooth = blue->width > 2 && part->luma.block > 1;  // as libjpeg does it
    int64_t skipped = part->left / part->across - blue->left;
    for (int64_t row = begin; row < end; row++) {
        int64_t y = part->top + row;
        uint8_t *rgb = pixels + 3 * part->width * row;
        SampleRows rows = {.luma = plane_row(&part->luma, y) + part->left - part->luma.left};
        if (frame->components == 1) {
            convert_gray_row(rows.luma, part->width, rgb);
            continue;
        }
        int64_t near = y / part->down;
        int64_t far = part->down == 1 ? near : clamp(near - 1 + 2 * (y & 1), 0, blue->height - 1);
        rows.blue_near = plane_row(blue, near) + skipped;
        rows.blue_far = plane_row(blue, far) + skipped;
        rows.red_near = plane_row(red, near) + skipped;
        rows.red_far = plane_row(red, far) + skipped;
        if (part->across == 1)
            convert_row(&rows, part->width, SAME, rgb);
        else if (!is_smooth)
            convert_row(&rows, part->width, REPEATED, rgb);
        else if (part->down == 1)
            convert_row(&rows, part->width, BETWEEN_TWO, rgb);
        else
            convert_row(&rows, part->width, BETWEEN_FOUR, rgb);
    }
}

static void repeat_edges_of(const Frame *frame, const Part *part, int64_t row, const Plane *plane) {
    for (int64_t y = row * plane->block; y < (row + 1) * plane->block; y++) {
        uint8_t *samples = plane_row(plane, y);
        if (part->first_column == 0)
            samples[-1] = samples[0];
        if (part->end_column == frame->columns) {
            uint8_t *end = samples + plane->width - plane->left;
            end[0] = end[-1];
        }
    }
}

void repeat_edges(const Frame *frame, const Part *part, int64_t row) {
    if (part->across == 1)
        return;
    repeat_edges_of(frame, part, row, &part->blue);
    repeat_edges_of(frame, part, row, &part->red);
}

int64_t ready_rows(const Frame *frame, const Part *part, int64_t row) {
    if (row == part->end_row - 1)
        return part->height;
    int64_t rows = (row + 1) * frame->down * part->luma.block;
    if (part->down == 2)
        rows--;  // the last row needs the chroma below it
    return clamp(rows - part->top, 0, part->height);
}

// The plane of a component with across × down blocks in an MCU.
static Plane make_plane(const Frame *frame, const Part *part, int64_t block, int64_t across, int64_t down, uint8_t *memory) {
    return (Plane){
        .samples = memory + PAD,
        .stride = (part->end_column - part->first_column) * across * block + 2 * PAD,
        .rows = KEPT_MCUS * down * block,
        .block = block,
        .top = part->first_row * down * block,
        .left = part->first_column * across * block,
        .height = ceil_div(frame->height * down * block, 8 * frame->down),
        .width = ceil_div(frame->width * across * block, 8 * frame->across),
    };
}

static uint8_t *plane_end(const Plane *plane) { return plane->samples - PAD + plane->rows * plane->stride; }

Part make_part(const Frame *frame, const Window *window, int64_t factor, uint8_t *planes) {
    Part part;
    int64_t mcu_height = 8 * frame->down;
    int64_t mcu_width = 8 * frame->across;
    // At least one pixel, beginning where chroma of half the width has a sample.
    part.top = clamp(window->top, 0, frame->height - 1) / factor;
    part.left = (clamp(window->left, 0, frame->width - 1) / factor) & ~1LL;
    int64_t bottom = max_of(ceil_div(min_of(window->bottom, frame->height), factor), part.top + 1);
    int64_t right = max_of(ceil_div(min_of(window->right, frame->width), factor), part.left + 1);
    part.height = bottom - part.top;
    part.width = right - part.left;
    int64_t edge = 2 * factor;  // one chroma sample
    part.first_row = max_of(part.top * factor - edge, 0) / mcu_height;
    part.first_column = max_of(part.left * factor - edge, 0) / mcu_width;
    part.end_row = min_of(ceil_div(bottom * factor + edge, mcu_height), frame->rows);
    part.end_column = min_of(ceil_div(right * factor + edge, mcu_width), frame->columns);
    int64_t luma_block = 8 / factor;
    // Chroma is decoded at twice the size where that saves its interpolation.
    bool is_doubled = frame->across == 2 && frame->down == 2 && luma_block < 8;
    int64_t chroma_block = is_doubled ? 2 * luma_block : luma_block;
    part.across = frame->across * luma_block / chroma_block;
    part.down = frame->down * luma_block / chroma_block;
    part.luma = make_plane(frame, &part, luma_block, frame->across, frame->down, planes);
    part.blue = make_plane(frame, &part, chroma_block, 1, 1, plane_end(&part.luma));
    part.red = make_plane(frame, &part, chroma_block, 1, 1, plane_end(&part.blue));
    return part;
}

// The most bytes for the planes of parts up to `width` pixels wide: whole MCUs of 16×16, and two pixels around.
static int64_t plane_bytes(int64_t width) { return 3 * (KEPT_MCUS * 16 + 1) * (width + 40 + 2 * PAD); }

int64_t jpeg_planes_room(int64_t width) { return plane_bytes(width + 3); }

int64_t jpeg_pixels_room(int64_t height, int64_t width) { return 3 * ((height + 2) * (width + 3) + PIXELS); }
