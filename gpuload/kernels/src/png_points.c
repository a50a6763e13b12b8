// Writes the pixels of a PNG with seek points: every so many rows a flush, behind which nothing is repeated from before it, and
// a row that needs none above it. The matches and filters of the file stay, so that it takes about as long as decoding it, and
// the file grows by little.

#include "checksum.h"
#include "deflate.h"
#include "png.h"

// What divides the rows of a file.
typedef struct {
    const Png *png;
    int64_t row_bytes, pixel_bytes;
    Tokens kept;           // of the file
    int64_t unused;        // bytes of the first of these tokens that belong to rows before
    uint8_t *rows;         // the next rows, filtered as in the file
    uint8_t *fresh;        // the rows of a segment, as they are written
    Token *tokens;         // of these
    uint8_t *lines[2];     // MOST_ROWS each, in turns
    const uint8_t *above;  // the last line
    int64_t line_bytes;
    uint32_t adler_before, adler;  // of what the file has, and of what is written
} Division;

static bool undo_group(Division *division, int64_t group, int64_t number) {
    FilteredRows rows = {rows_at_once(division->pixel_bytes), 0, division->pixel_bytes, {0}, division->above, {0}};
    rows.pixels = (division->row_bytes - 1) / division->pixel_bytes;
    for (int64_t row = 0; row < rows.number; row++) {
        rows.filtered[row] = division->rows + (group + min_of(row, number - 1)) * division->row_bytes + 1;
        rows.lines[row] = division->lines[0] + row * division->line_bytes + LINE_BEFORE;
    }
    if (!undo_filters(&rows))
        return false;
    division->above = rows.lines[number - 1];
    uint8_t *done = division->lines[0];
    division->lines[0] = division->lines[1];
    division->lines[1] = done;
    return true;
}

// Makes the rows of a segment as they are written: the first one filtered by Sub, unless it needs none above it already.
static bool make_rows(Division *division, int64_t rows, bool is_first) {
    int64_t bytes = rows * division->row_bytes;
    memcpy(division->fresh, division->rows, (size_t)bytes);
    int64_t at_once = rows_at_once(division->pixel_bytes);
    for (int64_t group = 0; group < rows; group += at_once) {
        if (!undo_group(division, group, min_of(at_once, rows - group)))
            return false;
        if (group > 0 || is_first || division->fresh[0] <= 1)
            continue;
        const uint8_t *line = division->lines[1] + LINE_BEFORE;
        division->fresh[0] = 1;
        for (int64_t byte = 0; byte < division->row_bytes - 1; byte++) {
            uint8_t left = byte < division->pixel_bytes ? 0 : line[byte - division->pixel_bytes];
            division->fresh[1 + byte] = (uint8_t)(line[byte] - left);
        }
    }
    return true;
}

// The tokens of a segment: those of the file whose bytes repeat others of the segment still, and literals.
static int64_t make_tokens(Division *division, int64_t bytes) {
    const uint8_t *fresh = division->fresh;
    int64_t number = 0;
    int64_t at = 0;
    int64_t token = 0;
    while (at < bytes) {
        int64_t left = division->kept.tokens[token].length - division->unused;
        int64_t distance = division->kept.tokens[token].distance;
        int64_t length = min_of(left, bytes - at);
        bool repeats = distance > 0 && distance <= at && length >= 3 && memcmp(fresh + at - distance, fresh + at, (size_t)length) == 0;
        if (repeats)
            division->tokens[number++] = (Token){(uint16_t)length, (uint16_t)distance};
        else
            number = add_literals(division->tokens, number, length);
        at += length;
        division->unused = length < left ? division->unused + length : 0;
        token += length == left;
    }
    division->kept.number -= token;
    memmove(division->kept.tokens, division->kept.tokens + token, (size_t)division->kept.number * sizeof(Token));
    return number;
}

static bool write_segment(Division *division, Inflater *inflater, int64_t rows, bool is_first, bool is_last, BitWriter *writer) {
    int64_t bytes = rows * division->row_bytes;
    const uint8_t *limit = division->rows + bytes;
    if (!inflate_tokens(inflater, &division->kept, limit) || division->kept.out < limit)
        return false;
    division->adler_before = continue_adler(division->adler_before, division->rows, bytes);
    if (!make_rows(division, rows, is_first))
        return false;
    division->adler = continue_adler(division->adler, division->fresh, bytes);
    write_blocks(writer, division->tokens, make_tokens(division, bytes), division->fresh, is_last);
    if (is_last) {
        write_bits(writer, 0, -writer->count & 7);
        write_bits(writer, __builtin_bswap32(division->adler), 32);
    } else {
        write_flush(writer);
    }
    division->rows += bytes;
    return true;
}

static bool take_memory(Division *division, int64_t apart, Memory *memory) {
    int64_t all = division->png->height * division->row_bytes;
    int64_t of_segment = min_of(apart * division->row_bytes, all);
    uint8_t *rows = take(memory, LINE_BEFORE + all + BEYOND_BYTES + LINE_AFTER, 1);
    division->fresh = take(memory, of_segment, 1);
    division->tokens = take(memory, of_segment, sizeof(Token));
    division->kept.tokens = take(memory, of_segment + BEYOND_BYTES, sizeof(Token));
    division->line_bytes = (LINE_BEFORE + division->row_bytes + LINE_AFTER + 63) & ~63LL;
    for (int turn = 0; turn < 2; turn++)
        division->lines[turn] = take(memory, MOST_ROWS * division->line_bytes, 1);
    uint8_t *zeros = take(memory, division->line_bytes, 1);
    if (memory->has_failed)
        return false;
    memset(zeros, 0, (size_t)division->line_bytes);
    division->above = zeros + LINE_BEFORE;
    division->rows = rows + LINE_BEFORE;
    division->kept.begin = division->kept.out = division->rows;
    return true;
}

EXPORT int64_t png_scratch_bytes(void) { return sizeof(PngScratch); }

enum { NOT_SOUND = -1, NO_MEMORY = -2, TOO_LARGE = -3 };

static int64_t write_segments(Division *division, Inflater *inflater, int64_t apart, BitWriter *writer, int64_t *ends) {
    const uint8_t *begin = writer->next;
    int64_t height = division->png->height;
    int64_t segments = 0;
    write_bits(writer, 0x9C78, 16);
    for (int64_t row = 0; row < height; row += apart) {
        int64_t rows = min_of(apart, height - row);
        if (!write_segment(division, inflater, rows, row == 0, row + rows == height, writer))
            return NOT_SOUND;
        ends[segments++] = writer->next - begin;
    }
    const uint8_t *out = inflate(inflater, division->kept.begin, division->kept.out, division->kept.out + 1);
    bool ends_well = division->kept.number == 0 && out == division->kept.out && ends_with_adler(inflater, division->adler_before);
    if (!ends_well)
        return NOT_SOUND;
    return writer->has_room ? segments : TOO_LARGE;
}

// Writes the stream of a PNG anew with a flush each `apart` rows, a multiple of 4. stream: memory for `room` bytes. ends: set to
// where each segment ends in it. Returns how many there are; NOT_SOUND if the file has a fault or is not divided here,
// TOO_LARGE if there is no room.
EXPORT int64_t divide_png(
    const uint8_t *bytes, int64_t size, int64_t apart, PngScratch *scratch, uint8_t *stream, int64_t room, int64_t *ends
) {
    Span file = {bytes, size};
    Png png = read_png(file, false);
    if (png.begin == 0 || png.interlaced || png.width > MOST_WIDTH || png.width == 0 || png.height == 0 || png.height * png.width > 1LL << 32)
        return NOT_SOUND;
    Division division = {.png = &png, .adler_before = ADLER_BEGIN, .adler = ADLER_BEGIN};
    int64_t bits = png_samples(&png) * png.depth;
    division.row_bytes = 1 + ((png.width * bits + 7) >> 3);
    division.pixel_bytes = max_of(bits >> 3, 1);
    Memory memory = {0};
    begin_inflating(&scratch->inflater, file, png.begin, png.begin_bytes, 0);
    int64_t result = NOT_SOUND;
    BitWriter writer = {stream, stream + room, 0, 0, true};
    if (!take_memory(&division, apart, &memory))
        result = NO_MEMORY;
    else if (read_stream_header(&scratch->inflater))
        result = write_segments(&division, &scratch->inflater, apart, &writer, ends);
    release_all(&memory);
    return result;
}
