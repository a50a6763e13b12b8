#include "checksum.h"
#include "png.h"

// The images that an image is divided into: one, or seven of interlaced ones (Adam7), each of which has the pixels from
// (top, left) on, at these distances.
typedef struct {
    int64_t top, left, down, across;
} Pass;

static const Pass WHOLE = {0, 0, 1, 1};
enum { PASSES = 7 };
static const Pass ADAM7[PASSES] = {{0, 0, 8, 8}, {0, 4, 8, 8}, {4, 0, 8, 4}, {0, 2, 4, 4}, {2, 0, 4, 2}, {0, 1, 2, 2}, {1, 0, 2, 1}};

enum {
    FRESH_BYTES = 160 << 10,  // that are inflated at a time, so that they are in the cache until they are pixels
    LINES = 2 * MOST_ROWS + 1,
    MOST_PIXEL_BYTES = 8,
};

static int64_t line_room(int64_t width) {
    return (LINE_BEFORE + MOST_PIXEL_BYTES * width + LINE_AFTER + PIECE_ALIGNMENT) & ~(int64_t)(PIECE_ALIGNMENT - 1);
}

static int64_t window_room(int64_t width) {
    return HISTORY_BYTES + max_of(FRESH_BYTES, 2 * MOST_ROWS * (MOST_PIXEL_BYTES * width + 1));
}

int64_t png_room(int64_t width) {
    width = min_of(width, MOST_WIDTH);
    return LINE_BEFORE + window_room(width) + BEYOND_BYTES + LINE_AFTER + LINES * line_room(width) + PIECE_ALIGNMENT;
}

// What was inflated: the filtered rows from `rows` to `end`, and before them what may be repeated.
typedef struct {
    Inflater *inflater;
    uint8_t *begin, *end;
    const uint8_t *limit;  // of the memory
    uint8_t *rows;
    int64_t left;          // bytes after `end` that are needed
    bool reads_all;        // so that the checksum can be compared
    uint32_t adler;        // of all bytes so far
} Inflated;

// Goes past rows, and sees to it that so many bytes follow. False if the stream has a fault, or ends before.
static bool advance(Inflated *inflated, int64_t passed, int64_t needed) {
    inflated->rows += passed;
    while (inflated->end - inflated->rows < needed) {
        if (inflated->rows + needed > inflated->limit || inflated->limit - inflated->end < BEYOND_BYTES) {
            const uint8_t *kept = inflated->end - min_of(inflated->end - inflated->begin, HISTORY_BYTES);
            kept = inflated->rows < kept ? inflated->rows : kept;
            int64_t moved = kept - inflated->begin;
            memmove(inflated->begin, kept, (size_t)(inflated->end - kept));
            inflated->end -= moved;
            inflated->rows -= moved;
        }
        const uint8_t *before = inflated->end;
        const uint8_t *limit = before + min_of(inflated->limit - before, inflated->left);
        uint8_t *end = inflate(inflated->inflater, inflated->begin, inflated->end, limit);
        if (end == NULL || end == before)
            return false;
        if (inflated->reads_all)
            inflated->adler = continue_adler(inflated->adler, before, end - before);
        inflated->end = end;
        inflated->left -= end - before;
    }
    return true;
}

// The part of an image that is decoded.
typedef struct {
    Span file;
    const Png *png;
    const PngPixels *made;
    Window window;
    uint8_t *pixels;
    int64_t stride;
    uint8_t *lines;       // slots for LINES lines, of which the last one is for zeros and for converted pixels
    int64_t line_bytes;   // of a slot
    int64_t begin_row;    // at which reading begins; 0 but where a seek point is
} PngPart;

static uint8_t *line_slot(const PngPart *part, int64_t slot) { return part->lines + slot * part->line_bytes + LINE_BEFORE; }

// How many of the pixels from `first` on, `step` apart, lie before `end`.
static int64_t count_before(int64_t end, int64_t first, int64_t step) { return end <= first ? 0 : (end - first + step - 1) / step; }

// Writes a line of a pass to the part, if its row is shown.
static bool place_line(const PngPart *part, const Pass *pass, int64_t row, const uint8_t *line) {
    const Window *window = &part->window;
    int64_t y = pass->top + row * pass->down;
    if (y < window->top || y >= window->bottom)
        return true;
    int64_t begin = count_before(window->left, pass->left, pass->across);
    int64_t end = count_before(window->right, pass->left, pass->across);
    uint8_t *pixels = part->pixels + (y - window->top) * part->stride;
    if (pass->down == 1)  // what is written beyond the line is written again
        return convert_line(part->made, line, begin, end, pixels);
    uint8_t *spread = line_slot(part, LINES - 1);
    if (!convert_line(part->made, line, begin, end, spread))
        return false;
    int64_t pixel_bytes = layout_bytes(part->made->layout);
    for (int64_t x = begin; x < end; x++) {
        int64_t column = pass->left + x * pass->across - window->left;
        memcpy(pixels + column * pixel_bytes, spread + (x - begin) * pixel_bytes, (size_t)pixel_bytes);
    }
    return true;
}

typedef struct {
    int64_t rows, row_bytes;   // as stored, with the byte that tells the filter
    int64_t pixel_bytes;
    int64_t shown_rows;        // of which pixels are made
    int64_t filtered_pixels;   // of a row that are needed
} PassSize;

static PassSize size_of_pass(const PngPart *part, const Pass *pass) {
    const Png *png = part->png;
    int64_t bits = png_samples(png) * png->depth;
    int64_t width = count_before(png->width, pass->left, pass->across);
    int64_t shown_columns = count_before(part->window.right, pass->left, pass->across);
    PassSize size;
    size.rows = width == 0 ? 0 : count_before(png->height, pass->top, pass->down);
    size.row_bytes = 1 + ((width * bits + 7) >> 3);
    size.pixel_bytes = max_of(bits >> 3, 1);
    size.shown_rows = min_of(size.rows, count_before(part->window.bottom, pass->top, pass->down));
    size.filtered_pixels = bits < 8 ? (shown_columns * bits + 7) >> 3 : shown_columns;
    return size;
}

// Some rows of a pass, of which the last are lines already.
typedef struct {
    int64_t first, number;
    const uint8_t *above;
    int64_t slot;   // of the first line
} RowGroup;

static bool decode_rows_of_pass(
    const PngPart *part, const Pass *pass, const PassSize *size, const Inflated *inflated, RowGroup *group
) {
    FilteredRows rows;
    rows.number = rows_at_once(size->pixel_bytes);
    rows.pixels = size->filtered_pixels;
    rows.pixel_bytes = size->pixel_bytes;
    rows.above = group->above;
    for (int64_t row = 0; row < rows.number; row++) {
        // Where rows are missing, the last one is undone again, into lines that nobody reads.
        rows.filtered[row] = inflated->rows + min_of(row, group->number - 1) * size->row_bytes + 1;
        rows.lines[row] = line_slot(part, group->slot + row);
    }
    if (!undo_filters(&rows))
        return false;
    for (int64_t row = 0; row < group->number; row++)
        if (!place_line(part, pass, group->first + row, rows.lines[row]))
            return false;
    group->above = rows.lines[group->number - 1];
    group->slot = MOST_ROWS - group->slot;
    return true;
}

// Decodes a pass. reads_all: also its rows below the part, behind which another pass begins.
static bool decode_pass(const PngPart *part, const Pass *pass, bool reads_all, Inflated *inflated) {
    PassSize size = size_of_pass(part, pass);
    uint8_t *zeros = line_slot(part, LINES - 1);
    memset(zeros, 0, (size_t)(size.filtered_pixels * size.pixel_bytes + LINE_AFTER / 2));
    RowGroup group = {part->begin_row, 0, zeros, 0};
    int64_t at_once = rows_at_once(size.pixel_bytes);
    int64_t end = reads_all ? size.rows : size.shown_rows;
    for (; group.first < end; group.first += group.number) {
        bool is_shown = group.first < size.shown_rows && size.filtered_pixels > 0;
        group.number = min_of(at_once, (is_shown ? size.shown_rows : end) - group.first);
        if (!advance(inflated, 0, group.number * size.row_bytes))
            return false;
        if (is_shown && !decode_rows_of_pass(part, pass, &size, inflated, &group))
            return false;
        inflated->rows += group.number * size.row_bytes;
    }
    return true;
}

// Whether the stream ends where the image does.
static bool ends_well(Inflated *inflated) {
    if (inflated->left != 0 || inflated->rows != inflated->end)
        return false;
    const uint8_t *end = inflate(inflated->inflater, inflated->begin, inflated->end, inflated->end + 1);
    return end == inflated->end && ends_with_adler(inflated->inflater, inflated->adler);
}

// How many bytes, inflated, there are from the first row that is read to the last one that is shown; of all passes, where
// there are several.
static int64_t needed_bytes(const PngPart *part) {
    PassSize size = size_of_pass(part, &WHOLE);
    if (!part->png->interlaced)
        return (size.shown_rows - part->begin_row) * size.row_bytes;
    int64_t bytes = 0;
    for (int64_t pass = 0; pass < PASSES; pass++) {
        size = size_of_pass(part, &ADAM7[pass]);
        bytes += size.rows * size.row_bytes;
    }
    return bytes;
}

// What is inflated from where the inflater is.
static Inflated begin_part(const PngPart *part, Inflater *inflater, uint8_t *memory) {
    uint8_t *begin = memory + LINE_BEFORE;
    const uint8_t *limit = begin + window_room(part->png->width);
    bool reads_all = part->png->interlaced || (part->window.bottom == part->png->height && part->begin_row == 0);
    return (Inflated){inflater, begin, begin, limit, begin, needed_bytes(part), reads_all, ADLER_BEGIN};
}

static bool decode_part(const PngPart *part, Inflater *inflater, uint8_t *memory) {
    const Png *png = part->png;
    begin_inflating(inflater, part->file, png->begin, png->begin_bytes, 0);
    if (!read_stream_header(inflater))
        return false;
    Inflated inflated = begin_part(part, inflater, memory);
    if (!png->interlaced)
        return decode_pass(part, &WHOLE, false, &inflated) && (!inflated.reads_all || ends_well(&inflated));
    for (int64_t pass = 0; pass < PASSES; pass++)
        if (!decode_pass(part, &ADAM7[pass], true, &inflated))
            return false;
    return ends_well(&inflated);
}

// Decodes a part from a seek point on. False if the file has a fault, or the point has.
static bool decode_from_point(PngPart *part, PngPoint point, Inflater *inflater, uint8_t *memory) {
    PixelsPlace place = find_pixels(part->file, part->png, point.at);
    if (place.at == 0)
        return false;
    begin_inflating(inflater, part->file, place.at, place.left, HISTORY_BYTES);
    part->begin_row = point.row;
    Inflated inflated = begin_part(part, inflater, memory);
    bool begins_well = advance(&inflated, 0, 1) && *inflated.rows <= 1;  // without what is above
    bool is_decoded = begins_well && decode_pass(part, &WHOLE, false, &inflated);
    part->begin_row = 0;
    return is_decoded && are_pixels_sound(part->file, part->png, point.at, inflater->at);
}

bool decode_png(
    Span file, Span points, const Window *window, int64_t layout, PngScratch *scratch, uint8_t *memory, uint8_t *pixels,
    Picture *picture
) {
    PngPoint point = point_before(points, file, window->top);
    Png png = read_png(file, point.row > 0);
    if (png.begin == 0 || png.height != picture->height || png.width != picture->width || png.width > MOST_WIDTH)
        return false;
    if (!define_pixels(&png, layout, &scratch->pixels))
        return false;
    PngPart part = {.file = file, .png = &png, .made = &scratch->pixels, .pixels = pixels};
    part.window.top = clamp(window->top, 0, png.height);
    part.window.left = clamp(window->left, 0, png.width);
    part.window.bottom = clamp(window->bottom, part.window.top, png.height);
    part.window.right = clamp(window->right, part.window.left, png.width);
    int64_t height = part.window.bottom - part.window.top;
    int64_t width = part.window.right - part.window.left;
    part.stride = width * layout_bytes(layout);
    part.line_bytes = line_room(png.width);
    uintptr_t after_window = (uintptr_t)(memory + LINE_BEFORE + window_room(png.width) + BEYOND_BYTES + LINE_AFTER);
    part.lines = (uint8_t *)((after_window + PIECE_ALIGNMENT - 1) & ~(uintptr_t)(PIECE_ALIGNMENT - 1));
    bool by_point = point.row > 0 && !png.interlaced && height > 0;
    bool is_decoded = by_point && decode_from_point(&part, point, &scratch->inflater, memory);
    if (!is_decoded) {  // the points may not be those of this file
        bool is_sound = point.row == 0 || are_pixels_sound(file, &png, 0, file.size);
        is_decoded = is_sound && decode_part(&part, &scratch->inflater, memory);
    }
    if (is_decoded)
        *picture = (Picture){pixels, height, width, part.stride, part.window.top, part.window.left, 1};
    return is_decoded;
}
