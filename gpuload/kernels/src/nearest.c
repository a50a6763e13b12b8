#include "nearest.h"

#include "taps.h"

// One axis of an image and of its output.
typedef struct {
    int64_t start, shape;      // of the window
    double low, high;          // of the region, from `start`
    int64_t first, held, size; // of the picture, and of the stored image
    int64_t outputs;
    bool is_flipped;
} Line;

// Where each output's pixel lies in the picture; -1 outside of the image.
//
// An output takes the pixel at its centre, low + (output + 0.5) * region / outputs, as torch's nearest-exact does. The
// product comes first: where a centre lies between two pixels, a rounded step might choose either.
static void find_places(const NearestArguments *pick, const Line *line, int64_t *places) {
    double region = line->high - line->low;
    for (int64_t output = 0; output < line->outputs; output++) {
        double centre = line->low + ((double)output + 0.5) * region / (double)line->outputs;
        int64_t pixel = (int64_t)floor(centre);
        if (pick->within_windows)
            pixel = clamp(pixel, 0, line->shape - 1);
        int64_t place = line->is_flipped ? line->outputs - 1 - output : output;
        places[place] = place_in_line(line->start + pixel, line->first, line->held, line->size, pick->padding_mode);
    }
}

// A line of a picture, and what a row of the output shows of it.
typedef struct {
    const uint8_t *pixels;
    const int64_t *columns; // of each output; -1 outside of the image
    int64_t shown;          // outputs that it gives, 0 for a row of fill
    int64_t channel;
} Source;

// meaning: of a stored number, as a value of the output.
#define FILL_ROW(stored_type, type, meaning)                                                     \
    do {                                                                                         \
        type fill;                                                                               \
        memcpy(&fill, pick->fill, sizeof fill);                                                  \
        type *values = (type *)row_values;                                                       \
        const stored_type *line = (const stored_type *)source->pixels;                           \
        for (int64_t x = 0; x < source->shown; x++) {                                            \
            int64_t column = source->columns[x];                                                 \
            values[x] = column >= 0 ? meaning(line[column * pick->step + source->channel]) : fill; \
        }                                                                                        \
        for (int64_t x = source->shown; x < pick->width; x++)                                    \
            values[x] = fill;                                                                    \
    } while (0)

#define ITSELF(stored) (stored)
#define IN_TABLE_1(stored) (((const uint8_t *)pick->table)[stored])
#define IN_TABLE_4(stored) (((const uint32_t *)pick->table)[stored])
#define IN_TABLE_8(stored) (((const uint64_t *)pick->table)[stored])

static void copy_row(const NearestArguments *pick, const Source *source, uint8_t *row_values) {
    if (pick->value_bytes == 1)
        FILL_ROW(uint8_t, uint8_t, ITSELF);
    else if (pick->value_bytes == 2)
        FILL_ROW(uint16_t, uint16_t, ITSELF);
    else
        FILL_ROW(uint32_t, uint32_t, ITSELF);
}

// The same, of values that the table gives.
static void look_up_row(const NearestArguments *pick, const Source *source, uint8_t *row_values) {
    bool is_byte = pick->value_bytes == 1;
    if (pick->entry_bytes == 1 && is_byte)
        FILL_ROW(uint8_t, uint8_t, IN_TABLE_1);
    else if (pick->entry_bytes == 1)
        FILL_ROW(uint16_t, uint8_t, IN_TABLE_1);
    else if (pick->entry_bytes == 4 && is_byte)
        FILL_ROW(uint8_t, uint32_t, IN_TABLE_4);
    else if (pick->entry_bytes == 4)
        FILL_ROW(uint16_t, uint32_t, IN_TABLE_4);
    else if (is_byte)
        FILL_ROW(uint8_t, uint64_t, IN_TABLE_8);
    else
        FILL_ROW(uint16_t, uint64_t, IN_TABLE_8);
}

// Marks the outputs whose values are of the image.
static void mark_inside(
    const NearestArguments *pick, int64_t image, const Size *output, const int64_t *rows, const int64_t *columns
) {
    uint8_t *plane = pick->inside + image * pick->height * pick->width;
    for (int64_t y = 0; y < pick->height; y++) {
        bool is_shown = y < output->height && rows[y] >= 0;
        uint8_t *marks = plane + y * pick->width;
        for (int64_t x = 0; x < pick->width; x++)
            marks[x] = is_shown && x < output->width && columns[x] >= 0 ? 255 : 0;
    }
}

static void pick_image(const NearestArguments *pick, int64_t image, int64_t *rows, int64_t *columns) {
    const Picture *picture = &pick->pictures[image];
    const Size *start = &pick->starts[image];
    const Size *shape = &pick->shapes[image];
    const Region *region = &pick->regions[image];
    const Size *size = &pick->sizes[image];
    const Size *output = &pick->outputs[image];
    const Flips *flips = &pick->flips[image];
    Line down = {
        start->height, shape->height, region->top, region->bottom, picture->top, picture->height, size->height,
        output->height, flips->vertical != 0,
    };
    Line across = {
        start->width, shape->width, region->left, region->right, picture->left, picture->width, size->width,
        output->width, flips->horizontal != 0,
    };
    find_places(pick, &down, rows);
    find_places(pick, &across, columns);
    int64_t row_bytes = pick->width * (pick->table == NULL ? pick->value_bytes : pick->entry_bytes);
    for (int64_t channel = 0; channel < pick->channels; channel++) {
        uint8_t *plane = pick->values + (image * pick->channels + channel) * pick->height * row_bytes;
        for (int64_t y = 0; y < pick->height; y++) {
            bool is_shown = y < output->height && rows[y] >= 0;
            const uint8_t *pixels = picture->pixels + (is_shown ? rows[y] * picture->stride : 0);
            Source source = {pixels, columns, is_shown ? output->width : 0, channel};
            if (pick->table == NULL)
                copy_row(pick, &source, plane + y * row_bytes);
            else
                look_up_row(pick, &source, plane + y * row_bytes);
        }
    }
    if (pick->inside != NULL)
        mark_inside(pick, image, output, rows, columns);
}

int64_t pick_nearest(const NearestArguments *pick, int64_t begin, int64_t end) {
    Memory memory = {0};
    int64_t *rows = take(&memory, pick->height, sizeof *rows);
    int64_t *columns = take(&memory, pick->width, sizeof *columns);
    if (!memory.has_failed)
        for (int64_t image = begin; image < end; image++)
            if (pick->pictures[image].pixels != NULL)
                pick_image(pick, image, rows, columns);
    release_all(&memory);
    return memory.has_failed ? OUT_OF_MEMORY : DONE;
}
