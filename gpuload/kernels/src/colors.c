// Operations on single pixels: by their levels alone, as one table for all steps in a row; and those that mix channels.

#include "operations.h"
#include "processor.h"

enum { LEVELS = 256 };

// The mean of the gray image, in levels.
static float mean_of(const Image *image) {
    int64_t pixels = pixels_of(image);
    const uint8_t *red = image->source;
    const uint8_t *green = red + pixels;
    const uint8_t *blue = green + pixels;
    int64_t total = 0;
    for (int64_t begin = 0; begin < pixels; begin += 4096) {
        int32_t sum = 0;
        int64_t end = min_of(begin + 4096, pixels);
        if (image->channels == 3)
            for (int64_t pixel = begin; pixel < end; pixel++)
                sum += gray_of(red[pixel], green[pixel], blue[pixel]);
        else
            for (int64_t pixel = begin; pixel < end; pixel++)
                sum += red[pixel];
        total += sum;
    }
    return (float)((double)total / (double)pixels);
}

// How many pixels of a plane have each level.
static void count_levels(const uint8_t *plane, int64_t pixels, int32_t counts[LEVELS]) {
    // Each level has eight counts, one after the other, since one would wait for the pixel before where neighbours are
    // alike; of a byte each, to be in few lines of the cache. So they are added up before one can overflow.
    uint8_t eighths[LEVELS][8];
    enum { AT_ONCE = 8 * 255 };
    static const uint64_t EVEN_BYTES = 0x00FF00FF00FF00FF;
    static const uint64_t SUM_OF_FOUR = 0x0001000100010001;  // as a factor: the sum of four numbers, in the highest one
    memset(counts, 0, LEVELS * sizeof *counts);
    for (int64_t begin = 0; begin < pixels; begin += AT_ONCE) {
        int64_t end = min_of(begin + AT_ONCE, pixels);
        memset(eighths, 0, sizeof eighths);
        _Pragma("clang loop unroll_count(8)")
        for (int64_t pixel = begin; pixel < end; pixel++)
            eighths[plane[pixel]][pixel & 7]++;
        for (int level = 0; level < LEVELS; level++) {
            uint64_t word = load_little_endian(eighths[level]);
            uint64_t four = (word & EVEN_BYTES) + (word >> 8 & EVEN_BYTES);
            counts[level] += (int32_t)(four * SUM_OF_FOUR >> 48);
        }
    }
}

// Pillow's ImageOps.equalize.
static void make_equalizing(const uint8_t *plane, int64_t pixels, uint8_t table[LEVELS]) {
    int32_t counts[LEVELS];
    count_levels(plane, pixels, counts);
    int highest = 0;
    for (int level = 0; level < LEVELS; level++)
        if (counts[level] > 0)
            highest = level;
    int64_t step = (pixels - counts[highest]) / 255;
    int64_t below = step / 2;
    double each = 1.0 / (double)max_of(step, 1);
    for (int level = 0; level < LEVELS; level++) {
        // Half more is divided, so that rounding does not decide.
        int64_t equalized = min_of((int64_t)(((double)below + 0.5) * each), 255);
        table[level] = (uint8_t)(step > 0 ? equalized : level);
        below += counts[level];
    }
}

typedef struct {
    uint8_t low, high;
} Extremes;

static Extremes extremes_of(const uint8_t *plane, int64_t pixels) {
    Extremes extremes = {255, 0};
    for (int64_t pixel = 0; pixel < pixels; pixel++) {
        extremes.low = plane[pixel] < extremes.low ? plane[pixel] : extremes.low;
        extremes.high = plane[pixel] > extremes.high ? plane[pixel] : extremes.high;
    }
    return extremes;
}

// What a step does to a level: ((level - first) / scale * factor + shift) & kept, `added` where the level was dark, and
// all of it inverted from a level on. Each step uses some of these.
typedef struct {
    float first, scale, factor, shift;
    int32_t kept;
    uint8_t added;
    float inverted_from;
} LevelStep;

static LevelStep level_step(int8_t op, float number, float mean, Extremes extremes) {
    LevelStep step = {0.0f, 1.0f, 1.0f, 0.0f, 255, 0, LEVELS};
    switch (op) {
    case BRIGHTNESS:
        step.factor = number;
        break;
    case CONTRAST:
        step.factor = number;
        step.shift = mean * (1.0f - number);
        break;
    case POSTERIZE:
        step.kept = 256 - (1 << (8 - (int)(number + 0.5f)));
        break;
    case AUTOCONTRAST:
        if (extremes.high > extremes.low) {
            step.first = extremes.low;
            step.scale = ((float)extremes.high - (float)extremes.low) * (float)(1.0 / 255.0);
        }
        break;
    case SOLARIZE_ADD:
        step.added = (uint8_t)number;
        break;
    default:  // SOLARIZE, and INVERT with a threshold of 0
        step.inverted_from = number;
    }
    return step;
}

// Adds a step to a table.
static void append_step(const LevelStep *step, uint8_t table[LEVELS]) {
    for (int level = 0; level < LEVELS; level++) {
        float before = table[level];
        int32_t after = level_of((before - step->first) / step->scale * step->factor + step->shift) & step->kept;
        after += before < 128.0f ? step->added : 0;
        table[level] = (uint8_t)(before >= step->inverted_from ? 255 - after : after);
    }
}

static void look_up(const uint8_t table[LEVELS], const uint8_t *restrict source, int64_t pixels, uint8_t *restrict result) {
    int64_t done = look_up_vectors(table, source, pixels, result);
    for (int64_t pixel = done; pixel < pixels; pixel++)
        result[pixel] = table[source[pixel]];
}

// Steps of which only the first may depend on the image's statistics.
void apply_table(const Image *image, int64_t steps) {
    int64_t pixels = pixels_of(image);
    int8_t first_op = image->ops[0];
    float mean = first_op == CONTRAST ? mean_of(image) : 0.0f;
    bool has_own_tables = first_op == AUTOCONTRAST || first_op == EQUALIZE;  // one for each channel
    uint8_t table[LEVELS];
    for (int64_t channel = 0; channel < image->channels; channel++) {
        const uint8_t *plane = image->source + channel * pixels;
        if (channel == 0 || has_own_tables) {
            Extremes extremes = {255, 0};
            if (first_op == AUTOCONTRAST)
                extremes = extremes_of(plane, pixels);
            if (first_op == EQUALIZE)
                make_equalizing(plane, pixels, table);
            else
                for (int level = 0; level < LEVELS; level++)
                    table[level] = (uint8_t)level;
            for (int64_t step = 0; step < steps; step++) {
                int8_t op = image->ops[step];
                if (op == NOTHING || op == EQUALIZE)
                    continue;
                LevelStep change = level_step(op, image->numbers[step * STEP_NUMBERS], mean, extremes);
                append_step(&change, table);
            }
        }
        look_up(table, plane, pixels, image->result + channel * pixels);
    }
}

// Also grayscale, which is a saturation of 0.
void saturate(const Image *image, int64_t steps) {
    (void)steps;
    int64_t pixels = pixels_of(image);
    float factor = image->ops[0] == GRAYSCALE ? 0.0f : image->numbers[0];
    float rest = 1.0f - factor;
    const uint8_t *restrict source = image->source;
    uint8_t *restrict result = image->result;
    for (int64_t pixel = 0; pixel < pixels; pixel++) {
        float red = source[pixel];
        float green = source[pixels + pixel];
        float blue = source[2 * pixels + pixel];
        float gray = (float)gray_of(red, green, blue);
        result[pixel] = level_of(fmaf(gray, rest, red * factor));
        result[pixels + pixel] = level_of(fmaf(gray, rest, green * factor));
        result[2 * pixels + pixel] = level_of(fmaf(gray, rest, blue * factor));
    }
}

// How far a hue, 0..6, is from a channel's middle: 1 from two sixths on.
static inline float distance_from(float hue, float middle) {
    float distance = fabsf(hue - middle) - 1.0f;
    distance = distance > 0.0f ? distance : 0.0f;
    return distance < 1.0f ? distance : 1.0f;
}

// Turns the hexagon of HSV, as gpuload.transforms.apply.hue.
void turn_hue(const Image *image, int64_t steps) {
    (void)steps;
    int64_t pixels = pixels_of(image);
    float shift = 6.0f * image->numbers[0];
    float scale = (float)(255.999 / 255.0);
    const uint8_t *restrict source = image->source;
    uint8_t *restrict result = image->result;
    for (int64_t pixel = 0; pixel < pixels; pixel++) {
        int32_t red = source[pixel];
        int32_t green = source[pixels + pixel];
        int32_t blue = source[2 * pixels + pixel];
        int32_t high = red > green ? red : green;
        high = high > blue ? high : blue;
        int32_t low = red < green ? red : green;
        low = low < blue ? low : blue;
        float chroma = (float)(high - low);
        float least = (float)low;
        int32_t apart = high == red ? green - blue : (high == green ? blue - red : red - green);
        float base = high == red ? 0.0f : (high == green ? 2.0f : 4.0f);
        float hue = (float)apart / (chroma > 1.0f ? chroma : 1.0f) + base + shift;
        hue -= 6.0f * floorf(hue * (float)(1.0 / 6.0));  // 0..6: red, yellow, green, cyan, blue, magenta
        result[pixel] = level_of((distance_from(hue, 3.0f) * chroma + least) * scale);
        result[pixels + pixel] = level_of(((1.0f - distance_from(hue, 2.0f)) * chroma + least) * scale);
        result[2 * pixels + pixel] = level_of(((1.0f - distance_from(hue, 4.0f)) * chroma + least) * scale);
    }
}
