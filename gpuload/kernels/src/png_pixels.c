// The pixels of a PNG as those of a set: gpuload/formats/conversion.py, which converts what Pillow reads, in C.

#include "png.h"

enum { LEVELS = 256, WHITE = 255, KEPT_PIXELS = 16 };

typedef uint8_t U8x16 __attribute__((vector_size(16)));
typedef uint8_t U8x64 __attribute__((vector_size(64)));

// A colour laid over white, as Pillow's alpha_composite rounds it.
static inline uint8_t over_white(int64_t level, int64_t alpha) {
    int64_t sum = (level * alpha + WHITE * (255 - alpha) + 128) << 7;
    return (uint8_t)(((sum >> 8) + sum) >> 15);
}

static void lay_over_white(uint8_t color[4]) {
    for (int channel = 0; channel < 3; channel++)
        color[channel] = over_white(color[channel], color[3]);
    color[3] = 255;
}

static bool define_levels(const Png *png, PngPixels *made) {
    int64_t levels = 1LL << png->depth;
    made->in_palette = levels;
    for (int64_t level = 0; level < levels; level++) {
        uint8_t gray = (uint8_t)(level * 255 / (levels - 1));
        uint8_t alpha = made->has_key && level == made->key[0] ? 0 : 255;
        memcpy(made->colors[level], (uint8_t[4]){gray, gray, gray, alpha}, 4);
    }
    return true;
}

static bool define_palette(const Png *png, PngPixels *made) {
    made->in_palette = png->palette.size / 3;
    if (png->palette.size % 3 != 0 || made->in_palette > 1LL << png->depth || png->transparency.size > made->in_palette)
        return false;
    for (int64_t index = 0; index < made->in_palette; index++) {
        memcpy(made->colors[index], png->palette.bytes + 3 * index, 3);
        made->colors[index][3] = index < png->transparency.size ? png->transparency.bytes[index] : 255;
    }
    return made->in_palette > 0;
}

static bool define_key(const Png *png, PngPixels *made) {
    made->has_key = png->transparency.size > 0;
    if (!made->has_key)
        return true;
    int64_t values = png->color == RGB ? 3 : 1;
    if (png->color == GRAY_ALPHA || png->color == RGB_ALPHA || png->transparency.size != 2 * values)
        return false;
    for (int64_t value = 0; value < values; value++) {
        const uint8_t *bytes = png->transparency.bytes + 2 * value;
        made->key[value] = bytes[0] << 8 | bytes[1];
        if (made->key[value] >> png->depth)
            return false;
    }
    return true;
}

bool define_pixels(const Png *png, int64_t layout, PngPixels *made) {
    made->layout = layout;
    made->color = png->color;
    made->depth = png->depth;
    made->has_key = false;
    if (png->color != PALETTE && !define_key(png, made))
        return false;
    bool is_gray_16 = png->color == GRAY && png->depth == 16;
    if (layout == AS_GRAY_16)
        return is_gray_16 && !made->has_key;
    if (layout == AS_CLASSES)
        return png->color == GRAY && png->depth == 8; // of fewer bits, levels are no class numbers
    if (png->depth == 16 && ((png->color == RGB && made->has_key) || (is_gray_16 && layout != AS_RGB)))
        return false;
    if (png->depth == 16 || (png->color != GRAY && png->color != PALETTE))
        return true;
    if (!(png->color == GRAY ? define_levels(png, made) : define_palette(png, made)))
        return false;
    if (layout == AS_RGB)
        for (int64_t index = 0; index < made->in_palette; index++)
            lay_over_white(made->colors[index]);
    return true;
}

// Levels or indices of 8 bits or fewer.
static bool convert_colors(const PngPixels *made, const uint8_t *line, int64_t begin, int64_t end, uint8_t *pixels) {
    int64_t step = layout_bytes(made->layout);
    int64_t depth = made->depth;
    int64_t in_byte = 8 / depth;
    int64_t mask = (1 << depth) - 1;
    int64_t most = 0;
    for (int64_t x = begin; x < end; x++, pixels += step) {
        int64_t shift = depth * (in_byte - 1 - x % in_byte);
        int64_t index = line[x * depth >> 3] >> shift & mask;
        most = max_of(most, index);
        memcpy(pixels, made->colors[index], 4);
    }
    return most < made->in_palette;
}

#define THREE_OF(n) n, n, n
#define THREE_OF_FOUR(n) THREE_OF(n), THREE_OF(n + 1), THREE_OF(n + 2), THREE_OF(n + 3)
#define UNUSED_16 -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1

static void repeat_grays(const uint8_t *grays, int64_t number, uint8_t *pixels) {
    int64_t x = 0;
    for (; x + KEPT_PIXELS <= number; x += KEPT_PIXELS) {
        U8x16 levels;
        memcpy(&levels, grays + x, sizeof levels);
        U8x64 tripled = __builtin_shufflevector(
            levels, levels, THREE_OF_FOUR(0), THREE_OF_FOUR(4), THREE_OF_FOUR(8), THREE_OF_FOUR(12), UNUSED_16
        );
        memcpy(pixels + 3 * x, &tripled, 3 * KEPT_PIXELS);
    }
    for (; x < number; x++)
        memset(pixels + 3 * x, grays[x], 3);
}

static void swap_bytes(const uint8_t *line, int64_t number, uint8_t *pixels) {
    for (int64_t x = 0; x < number; x++) {
        uint16_t value;
        memcpy(&value, line + 2 * x, 2);
        value = __builtin_bswap16(value);
        memcpy(pixels + 2 * x, &value, 2);
    }
}

// A value of 16 bits as one of 8, rounded.
static inline uint8_t rounded_level(int64_t value) { return (uint8_t)((value * 255 + 32767) / 65535); }

static void convert_gray_16(const PngPixels *made, const uint8_t *line, int64_t number, uint8_t *pixels) {
    for (int64_t x = 0; x < number; x++) {
        int64_t value = line[2 * x] << 8 | line[2 * x + 1];
        bool is_transparent = made->has_key && value == made->key[0];
        memset(pixels + 3 * x, is_transparent ? WHITE : rounded_level(value), 3);
    }
}

// Gray with alpha, RGB, or RGB with alpha, of 8 bits or the upper 8 of 16.
static inline void convert_samples(
    const PngPixels *made, int64_t samples, int64_t sample_bytes, const uint8_t *line, int64_t number, uint8_t *pixels
) {
    int64_t step = layout_bytes(made->layout);
    for (int64_t x = 0; x < number; x++, pixels += step) {
        const uint8_t *pixel = line + x * samples * sample_bytes;
        int64_t green = samples == 2 ? 0 : sample_bytes;
        uint8_t color[4] = {pixel[0], pixel[green], pixel[2 * green], 255};
        if (samples != 3)
            color[3] = pixel[(samples - 1) * sample_bytes];
        else if (made->has_key && color[0] == made->key[0] && color[1] == made->key[1] && color[2] == made->key[2])
            color[3] = 0;
        if (made->layout == AS_RGB)
            lay_over_white(color);
        memcpy(pixels, color, 4);
    }
}

bool convert_line(const PngPixels *made, const uint8_t *line, int64_t begin, int64_t end, uint8_t *pixels) {
    int64_t number = end - begin;
    bool is_deep = made->depth == 16;
    int64_t sample_bytes = is_deep ? 2 : 1;
    if (made->color == GRAY && is_deep) {
        if (made->layout == AS_GRAY_16)
            swap_bytes(line + 2 * begin, number, pixels);
        else
            convert_gray_16(made, line + 2 * begin, number, pixels);
    } else if (made->layout == AS_CLASSES && made->depth == 8) {
        memcpy(pixels, line + begin, (size_t)number);
    } else if (made->color == GRAY && made->depth == 8 && !made->has_key && made->layout == AS_RGB) {
        repeat_grays(line + begin, number, pixels);
    } else if (made->color == GRAY || made->color == PALETTE) {
        return convert_colors(made, line, begin, end, pixels);
    } else if (made->color == GRAY_ALPHA) {
        convert_samples(made, 2, sample_bytes, line + 2 * sample_bytes * begin, number, pixels);
    } else if (made->color == RGB) {
        if (made->layout == AS_RGB && !is_deep && !made->has_key)
            memcpy(pixels, line + 3 * begin, (size_t)(3 * number));
        else
            convert_samples(made, 3, sample_bytes, line + 3 * sample_bytes * begin, number, pixels);
    } else if (made->layout == AS_RGBA && !is_deep) {
        memcpy(pixels, line + 4 * begin, (size_t)(4 * number));
    } else {
        convert_samples(made, 4, sample_bytes, line + 4 * sample_bytes * begin, number, pixels);
    }
    return true;
}
