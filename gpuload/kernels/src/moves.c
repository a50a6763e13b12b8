// Moves pixels by a map of their coordinates: rotations, affine maps and perspectives.
//
// Nearest pixels are taken as words of up to three levels, and those from outside from one word with the fill. Four
// weighted ones are words of up to three channels (store.h), with 13 bits for each direction; around the image is a frame
// of one pixel with the fill, where all that is outside comes from. Where pixels keep their neighbours in whole rows or
// columns (shears, translations), they are copied.

#include "operations.h"
#include "store.h"

enum { WHOLE = 1 << LINEAR_BITS };
static const uint64_t HALF = (WHOLE >> 1) * EACH_LANE;

// Three channels of an image, or one.
typedef struct {
    const uint8_t *source;
    uint8_t *result;
    int64_t channels;  // 3 or 1
    int64_t height, width;
} Planes;

// A warp: the matrix from output to input pixels, both counted from the centre; and what comes from outside.
typedef struct {
    const float *matrix;  // (2, 3) if affine, else (3, 3)
    const float *fill;    // a level for each of three channels
    bool is_affine, is_bilinear;
} Warp;

// Levels of each pixel as a word, 8 bits for each channel, and then one of the fill.
static void pack_words(const Planes *planes, uint32_t outside, uint32_t *restrict words) {
    int64_t pixels = planes->height * planes->width;
    int64_t apart = planes->channels == 3 ? pixels : 0;  // of one channel, its level thrice
    const uint8_t *restrict red = planes->source;
    const uint8_t *restrict green = red + apart;
    const uint8_t *restrict blue = green + apart;
    for (int64_t pixel = 0; pixel < pixels; pixel++)
        words[pixel] = (uint32_t)red[pixel] | (uint32_t)green[pixel] << 8 | (uint32_t)blue[pixel] << 16;
    words[pixels] = outside;
}

// The same with LANE bits for each channel, and a frame of the fill: (height + 2, width + 2).
static void pack_framed(const Planes *planes, uint64_t outside, uint64_t *words) {
    int64_t height = planes->height;
    int64_t width = planes->width;
    int64_t stride = width + 2;
    int64_t apart = planes->channels == 3 ? height * width : 0;
    for (int64_t x = 0; x < stride; x++) {
        words[x] = outside;
        words[(height + 1) * stride + x] = outside;
    }
    for (int64_t y = 0; y < height; y++) {
        uint64_t *restrict row = words + (y + 1) * stride;
        const uint8_t *restrict red = planes->source + y * width;
        const uint8_t *restrict green = red + apart;
        const uint8_t *restrict blue = green + apart;
        row[0] = outside;
        row[width + 1] = outside;
        for (int64_t x = 0; x < width; x++)
            row[x + 1] = (uint64_t)red[x] | (uint64_t)green[x] << LANE | (uint64_t)blue[x] << 2 * LANE;
    }
}

typedef struct {
    float x, y;
} Point;

// The map along a row of the output: a column's offset from the centre to the place in the input.
typedef struct {
    float x_step, y_step;  // from column to column
    float x, y;            // of the row's centre
    float along, far;      // the divisor: along * column + far
    float last_x, last_y;
} RowMap;

static RowMap row_map(const Warp *warp, int64_t row, int64_t height, int64_t width) {
    const float *matrix = warp->matrix;
    float middle_x = (float)((width - 1) / 2.0);
    float middle_y = (float)((height - 1) / 2.0);
    float down = (float)row - middle_y;
    RowMap map = {
        .x_step = matrix[0],
        .y_step = matrix[3],
        .x = down * matrix[1] + matrix[2],
        .y = down * matrix[4] + matrix[5],
        .far = 1.0f,
    };
    if (warp->is_affine) {
        map.x += middle_x;
        map.y += middle_y;
    } else {
        map.along = matrix[6];
        map.far = down * matrix[7] + matrix[8];
        map.last_x = middle_x;
        map.last_y = middle_y;
    }
    return map;
}

// Whether nothing is divided along a row.
static bool is_flat(const RowMap *map) { return map->along == 0.0f && map->far == 1.0f; }

// Rounded as in torch, so that of two pixels that are equally near both take the same.
static inline Point place_of(RowMap map, float across, bool divides) {
    Point place = {across * map.x_step + map.x, across * map.y_step + map.y};
    if (divides) {
        float divisor = across * map.along + map.far;
        place.x /= divisor;
        place.y /= divisor;
    }
    place.x += map.last_x;
    place.y += map.last_y;
    return place;
}

// The number of the pixel that each pixel of a row comes from; that after the last for all outside. A loop for each value of
// `divides`, since only one of them divides.
static inline __attribute__((always_inline)) void find_nearest_by(
    RowMap map, Size size, bool divides, int32_t *restrict places
) {
    float width = (float)size.width;
    float height = (float)size.height;
    float middle = (float)((size.width - 1) / 2.0);
    int32_t stride = (int32_t)size.width;
    int32_t columns = (int32_t)size.width;
    int32_t outside = (int32_t)(size.height * size.width);
    for (int32_t column = 0; column < columns; column++) {
        Point place = place_of(map, (float)column - middle, divides);
        float x = rintf(place.x);
        float y = rintf(place.y);
        int32_t is_inside = (x >= 0.0f) & (x < width) & (y >= 0.0f) & (y < height);
        int32_t inner_x = (int32_t)(is_inside ? x : 0.0f);
        int32_t inner_y = (int32_t)(is_inside ? y : 0.0f);
        places[column] = is_inside ? inner_y * stride + inner_x : outside;
    }
}

static void find_nearest(const Warp *warp, int64_t row, Size size, int32_t *places) {
    RowMap map = row_map(warp, row, size.height, size.width);
    if (is_flat(&map))
        find_nearest_by(map, size, false, places);
    else
        find_nearest_by(map, size, true, places);
}

// Where the pixels of a row come from: for each the number of a pixel in the frame, and the parts of the way to its
// neighbours on the right and below, of WHOLE. There is room for up to WORDS_AT_ONCE too many, which come from 0.
enum { PLACES_AT_ONCE = 4 };
typedef struct {
    int32_t *number, *right, *below;  // (width,)
    uint64_t *sums;                   // (width,): memory
} WeightedRow;

// A coordinate, or one on the frame; also where it is not a number.
static inline float on_frame(float coordinate, float size) {
    float upper = coordinate < size ? coordinate : size;
    return coordinate > -1.0f ? upper : -1.0f;
}

static inline __attribute__((always_inline)) void find_weighted_by(
    RowMap map, Size size, bool divides, const WeightedRow *places
) {
    float middle = (float)((size.width - 1) / 2.0);
    float width = (float)size.width;
    float height = (float)size.height;
    int32_t stride = (int32_t)size.width + 2;
    int32_t columns = (int32_t)size.width;
    int32_t *restrict number = places->number;
    int32_t *restrict right = places->right;
    int32_t *restrict below = places->below;
    for (int32_t column = 0; column < columns; column++) {
        Point place = place_of(map, (float)column - middle, divides);
        float x = on_frame(place.x, width);
        float y = on_frame(place.y, height);
        float left = floorf(x);
        float top = floorf(y);
        number[column] = ((int32_t)top + 1) * stride + (int32_t)left + 1;
        right[column] = (int32_t)((x - left) * (float)WHOLE + 0.5f);
        below[column] = (int32_t)((y - top) * (float)WHOLE + 0.5f);
    }
}

static void find_weighted(const Warp *warp, int64_t row, Size size, const WeightedRow *places) {
    RowMap map = row_map(warp, row, size.height, size.width);
    if (is_flat(&map))
        find_weighted_by(map, size, false, places);
    else
        find_weighted_by(map, size, true, places);
}

INLINED U64x4 as_factors(const int32_t *numbers) {
    U32x4 loaded;
    memcpy(&loaded, numbers, sizeof loaded);
    return __builtin_convertvector(loaded, U64x4);
}

// Writes a row of the result: the words at its places, weighted and rounded.
static void store_weighted(const uint64_t *framed, const WeightedRow *places, const Planes *planes, int64_t row) {
    int64_t width = planes->width;
    uint64_t *restrict sums = places->sums;
    for (int64_t x = 0; x < width; x += PLACES_AT_ONCE) {
        Neighbours upper = load_neighbours(framed, places->number + x);
        Neighbours lower = load_neighbours(framed + width + 2, places->number + x);
        U64x4 right = as_factors(places->right + x);
        U64x4 below = as_factors(places->below + x);
        U64x4 both = right * below >> LINEAR_BITS;
        // The four weights sum to WHOLE.
        U64x4 sum = (upper.first << LINEAR_BITS) + HALF;
        sum += (upper.second - upper.first) * right;
        sum += (lower.first - upper.first) * below;
        sum += (upper.first - upper.second + lower.second - lower.first) * both;
        memcpy(sums + x, &sum, sizeof sum);
    }
    if (planes->channels == 3) {
        OutputMemory output = {.values = planes->result, .height = planes->height, .width = width, .planar = 1};
        store_rgb_row(sums, false, &output, 0, row);
        return;
    }
    uint8_t *restrict result = planes->result + row * width;
    for (int64_t x = 0; x < width; x++)
        result[x] = (uint8_t)(sums[x] >> LINEAR_BITS);
}

// The words at these places, as the channels of the result.
static void store_nearest(const uint32_t *restrict words, const int32_t *restrict places, const Planes *planes) {
    int64_t pixels = planes->height * planes->width;
    uint8_t *restrict red = planes->result;
    if (planes->channels == 1) {
        for (int64_t pixel = 0; pixel < pixels; pixel++)
            red[pixel] = (uint8_t)words[places[pixel]];
        return;
    }
    uint8_t *restrict green = red + pixels;
    uint8_t *restrict blue = green + pixels;
    for (int64_t pixel = 0; pixel < pixels; pixel++) {
        uint32_t word = words[places[pixel]];
        red[pixel] = (uint8_t)word;
        green[pixel] = (uint8_t)(word >> 8);
        blue[pixel] = (uint8_t)(word >> 16);
    }
}

// A shear along the rows or the columns: each line moves along itself by slope * (its number - middle) + offset, and all
// lines across by `across`.
typedef struct {
    bool along_rows;
    int64_t lines;
    float slope, offset, across;
} Shear;

static float shift_of(const Shear *shear, int64_t line) {
    float middle = (float)((shear->lines - 1) / 2.0);
    return ((float)line - middle) * shear->slope + shear->offset;
}

// Whether all pixels with a shift, which is a product and `added`, are moved by the whole number nearest to it. Else it is
// halfway between two as far as float32 tells, and how each pixel's place is rounded decides.
static bool is_decided(float shift, float added, int64_t size) {
    float rounding = (fabsf(shift) + fabsf(added) + (float)(size + 1)) * 0x1p-22f;
    return fabsf(shift - rintf(shift)) < 0.5f - rounding;
}

// Copies the pixels that a rectangle of the result takes from the source `down` rows below and `right` columns beside it.
static void copy_shifted(const Planes *planes, int64_t first_line, int64_t end_line, bool along_rows, int64_t right, int64_t down) {
    int64_t height = planes->height;
    int64_t width = planes->width;
    int64_t top = max_of(along_rows ? first_line : 0, -down);
    int64_t bottom = min_of(along_rows ? end_line : height, height - down);
    int64_t left = max_of(along_rows ? 0 : first_line, -right);
    int64_t end = min_of(along_rows ? width : end_line, width - right);
    if (end <= left)
        return;
    for (int64_t channel = 0; channel < planes->channels; channel++)
        for (int64_t row = top; row < bottom; row++) {
            int64_t place = channel * height * width + row * width + left;
            memcpy(planes->result + place, planes->source + place + down * width + right, (size_t)(end - left));
        }
}

// Does an affine warp that moves each row by some columns, or each column by some rows. Returns whether it is one, and
// rounding does not decide by how many.
static bool copy_sheared(const Warp *warp, const Planes *planes) {
    const float *matrix = warp->matrix;
    int64_t pixels = planes->height * planes->width;
    int64_t most = max_of(planes->height, planes->width);
    if (matrix[0] != 1.0f || matrix[4] != 1.0f || !(matrix[1] == 0.0f || matrix[3] == 0.0f))
        return false;
    Shear shear = {true, planes->height, matrix[1], matrix[2], matrix[5]};
    if (matrix[3] != 0.0f)
        shear = (Shear){false, planes->width, matrix[3], matrix[5], matrix[2]};
    if (!is_decided(shear.across, shear.across, most))
        return false;
    for (int64_t line = 0; line < shear.lines; line++)
        if (!is_decided(shift_of(&shear, line), shear.offset, most))
            return false;
    for (int64_t channel = 0; channel < planes->channels; channel++)
        memset(planes->result + channel * pixels, (uint8_t)warp->fill[channel], (size_t)pixels);
    int64_t across = (int64_t)rintf(shear.across);
    int64_t first_line = 0;
    for (int64_t line = 1; line <= shear.lines; line++) {
        float shift = rintf(shift_of(&shear, first_line));
        if (line < shear.lines && rintf(shift_of(&shear, line)) == shift)
            continue;
        int64_t along = (int64_t)shift;
        int64_t right = shear.along_rows ? along : across;
        int64_t down = shear.along_rows ? across : along;
        copy_shifted(planes, first_line, line, shear.along_rows, right, down);
        first_line = line;
    }
    return true;
}

static void move_nearest(const Warp *warp, const Planes *planes, uint8_t *scratch) {
    int64_t pixels = planes->height * planes->width;
    uint32_t *words = (uint32_t *)(void *)scratch;
    int32_t *places = (int32_t *)(void *)(words + pixels + 1);
    uint32_t outside = 0;
    for (int64_t channel = 0; channel < planes->channels; channel++)
        outside |= (uint32_t)warp->fill[channel] << 8 * channel;
    pack_words(planes, outside, words);
    for (int64_t row = 0; row < planes->height; row++)
        find_nearest(warp, row, (Size){planes->height, planes->width}, places + row * planes->width);
    store_nearest(words, places, planes);
}

static void move_weighted(const Warp *warp, const Planes *planes, uint8_t *scratch) {
    int64_t width = planes->width;
    uint64_t *framed = (uint64_t *)(void *)scratch;
    int64_t room = width + WORDS_AT_ONCE;
    WeightedRow places;
    places.sums = framed + (planes->height + 2) * (width + 2);
    places.number = (int32_t *)(void *)(places.sums + room);
    places.right = places.number + room;
    places.below = places.right + room;
    memset(places.number + width, 0, WORDS_AT_ONCE * sizeof *places.number);
    uint64_t outside = 0;
    for (int64_t channel = 0; channel < planes->channels; channel++)
        outside |= (uint64_t)warp->fill[channel] << LANE * channel;
    pack_framed(planes, outside, framed);
    for (int64_t row = 0; row < planes->height; row++) {
        find_weighted(warp, row, (Size){planes->height, width}, &places);
        store_weighted(framed, &places, planes, row);
    }
}

// Each pixel from where it comes from, the nearest one or four weighted ones, or the fill.
void move_pixels(const Image *image, int64_t steps) {
    (void)steps;
    int8_t op = image->ops[0];
    Warp warp = {.matrix = image->numbers};
    warp.is_affine = op == AFFINE || op == AFFINE_BILINEAR;
    warp.is_bilinear = op == AFFINE_BILINEAR || op == WARP_BILINEAR;
    warp.fill = image->numbers + (warp.is_affine ? 6 : MATRIX_NUMBERS);
    int64_t together = image->channels == 3 ? 3 : 1;
    for (int64_t channel = 0; channel < image->channels; channel += together) {
        int64_t first = channel * pixels_of(image);
        Planes planes = {image->source + first, image->result + first, together, image->height, image->width};
        if (op == AFFINE && copy_sheared(&warp, &planes))
            continue;
        if (warp.is_bilinear)
            move_weighted(&warp, &planes, image->scratch);
        else
            move_nearest(&warp, &planes, image->scratch);
    }
}
