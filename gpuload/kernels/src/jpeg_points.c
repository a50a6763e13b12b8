#include "jpeg_points.h"

enum {
    HEAD_BYTES = 6,
    CHECKSUM_BYTES = 8,  // which also keep the last number apart from the end of memory, as it is read with a word
    MOST_BITS = 40,      // of a number
    FINEST = 4,          // columns from point to point
    COARSEST = 128,
};

// Between rows alone may be restart markers.
static bool can_be_entered(const Frame *frame) { return frame->restart_interval % frame->columns == 0; }

// The stored numbers: those of a kind one behind the other.

static int64_t bits_of_a_point(const Points *points) {
    return points->bits[COEFFICIENT] + points->bits[COEFFICIENT + 1] + points->bits[COEFFICIENT + 2];
}

static int64_t steps_begin(const Points *points, const Frame *frame) {
    return (frame->rows - 1) * points->bits[ROW_DISTANCE];
}

static int64_t coefficients_begin(const Points *points, const Frame *frame) {
    return steps_begin(points, frame) + frame->rows * (points->number - 1) * points->bits[STEP_DISTANCE];
}

static int64_t bytes_for_bits(int64_t bits) { return HEAD_BYTES + (bits + 7) / 8 + CHECKSUM_BYTES; }

static int64_t stored_bytes(const Points *points, const Frame *frame) {
    return bytes_for_bits(coefficients_begin(points, frame) + frame->rows * points->number * bits_of_a_point(points));
}

static int64_t load_number(const Points *points, int64_t bit, int64_t bits) {
    if (bits == 0)
        return 0;
    uint64_t word = load_big_endian(points->numbers + (bit >> 3)) << (bit & 7);
    return (int64_t)(word >> (64 - bits));
}

int64_t row_bits(const Points *points, int64_t row) {
    return load_number(points, row * points->bits[ROW_DISTANCE], points->bits[ROW_DISTANCE]);
}

int64_t row_begin(const Points *points, const Frame *frame, int64_t row) {
    int64_t bit = frame->begin * 8;
    for (int64_t above = 0; above < row; above++)
        bit += row_bits(points, above);
    return bit;
}

// The bit of the file of a point. row_at: of its row.
static int64_t point_bit(const Points *points, const Frame *frame, int64_t row, int64_t row_at, int64_t index) {
    int64_t bits = points->bits[STEP_DISTANCE];
    int64_t first = steps_begin(points, frame) + row * (points->number - 1) * bits;
    int64_t bit = row_at;
    for (int64_t before = 0; before < index; before++)
        bit += load_number(points, first + before * bits, bits);
    return bit;
}

// The DC coefficient before a point.
static int64_t coefficient_of(const Points *points, const Frame *frame, int64_t row, int64_t index, int64_t component) {
    int64_t bit = coefficients_begin(points, frame) + (row * points->number + index) * bits_of_a_point(points);
    for (int64_t before = 0; before < component; before++)
        bit += points->bits[COEFFICIENT + before];
    int64_t zigzag = load_number(points, bit, points->bits[COEFFICIENT + component]);
    return zigzag >> 1 ^ -(zigzag & 1);
}

// Of stored points without their checksum, and of the size of their JPEG.
static uint64_t checksum_of(Span stored, int64_t file_size) {
    static const uint64_t MULTIPLIER = 0x9E3779B97F4A7C15;
    int64_t content = stored.size - CHECKSUM_BYTES;
    uint64_t mixed = (uint64_t)file_size;
    for (int64_t begin = 0; begin < content; begin += 8) {
        int64_t missing = max_of(begin + 8 - content, 0);
        uint64_t word = load_big_endian(stored.bytes + begin) >> 8 * missing;
        mixed = (mixed ^ word) * MULTIPLIER;
        mixed ^= mixed >> 32;
    }
    return mixed;
}

Points read_points(Span stored, Span file, const Frame *frame) {
    Points none = {0};
    if (stored.size < HEAD_BYTES || stored.bytes[0] == 0 || !can_be_entered(frame))
        return none;
    Points points = {.apart = stored.bytes[0], .numbers = stored.bytes + HEAD_BYTES};
    points.number = ceil_div(frame->columns, points.apart);
    for (int kind = 0; kind < POINT_NUMBERS; kind++) {
        points.bits[kind] = stored.bytes[1 + kind];
        if (points.bits[kind] > MOST_BITS)
            return none;
    }
    if (stored.size != stored_bytes(&points, frame))
        return none;
    uint64_t checksum = load_big_endian(stored.bytes + stored.size - CHECKSUM_BYTES);
    return checksum == 0 || checksum == checksum_of(stored, file.size) ? points : none;
}

// A point: at a column, or the one that begins the next row; of the last row the end has none.
typedef struct {
    int64_t row, index, bit;
} Place;

static Place next_point(const Points *points, const Frame *frame, int64_t row, int64_t row_at, int64_t column) {
    int64_t index = column / points->apart;
    if (column < frame->columns)
        return (Place){row, index, point_bit(points, frame, row, row_at, index)};
    return (Place){row + 1, 0, row_at + row_bits(points, row)};
}

bool seek_row(
    Span file, const Frame *frame, JpegScratch *scratch, const Part *part, const Points *points, int64_t row,
    int64_t row_at, Columns *columns
) {
    int64_t index = part->first_column / points->apart;
    int64_t bit = point_bit(points, frame, row, row_at, index);
    int64_t file_bits = file.size * 8;
    columns->begin = index * points->apart;
    columns->end = min_of(ceil_div(part->end_column, points->apart) * points->apart, frame->columns);
    int64_t stop = file_bits;
    if (columns->end < frame->columns || row + 1 < frame->rows)
        stop = next_point(points, frame, row, row_at, columns->end).bit;
    if (bit < frame->begin * 8 || bit >= file_bits)
        return false;
    seek_scan(file, scratch, bit, stop);
    for (int64_t component = 0; component < 3; component++)
        scratch->dc_before[component] = coefficient_of(points, frame, row, index, component);
    return true;
}

bool agrees_with_points(
    Span file, const Frame *frame, const JpegScratch *scratch, const Points *points, int64_t row, int64_t row_at,
    int64_t column
) {
    bool ends_row = column >= frame->columns;
    if (ends_row && row + 1 == frame->rows)
        return ends_well(file, scratch, true);
    bool at_marker = ends_row && is_after_restart_marker(frame, (row + 1) * frame->columns);
    Place place = next_point(points, frame, row, row_at, column);
    for (int64_t component = 0; component < frame->components; component++)
        if (scratch->dc_before[component] != coefficient_of(points, frame, place.row, place.index, component))
            return false;
    return has_read_up_to(scratch, place.bit, at_marker);
}

// Finding points.

typedef struct {
    int64_t bit;        // of the file
    int64_t before[3];  // DC coefficients
} Point;

// Points of a file, `number` in each row.
typedef struct {
    Point *points;
    int64_t rows, number;
} Table;

// Adds the stuffed bytes and markers that the file has between the bits of the scan, which has no fault.
static void count_stuffed_bytes(Span file, const Frame *frame, const Table *table) {
    int64_t place = frame->begin;
    int64_t read = 0;
    for (int64_t number = 0; number < table->rows * table->number; number++) {
        Point *point = &table->points[number];
        while (read < point->bit >> 3) {
            if (file.bytes[place] == 0xFF && file.bytes[place + 1] != 0) {  // a restart marker
                place += 2;
                continue;
            }
            place += file.bytes[place] == 0xFF ? 2 : 1;
            read++;
        }
        point->bit = place * 8 + (point->bit & 7);
    }
}

// Fills a table with a point every `apart` columns. False where the file has a fault.
static bool read_table(Span file, const Frame *frame, JpegScratch *scratch, int64_t apart, Table *table) {
    begin_scan(file, frame, scratch);
    int64_t number = 0;
    for (int64_t mcu = 0; mcu < frame->rows * frame->columns; mcu++) {
        if (mcu % frame->columns % apart == 0) {
            Point *point = &table->points[number++];
            bool at_marker = is_after_restart_marker(frame, mcu);
            int64_t used = at_marker ? used_whole_bytes_in_bits(scratch) : used_bits(scratch);
            point->bit = scratch->coded.before * 8 + used;
            memcpy(point->before, scratch->dc_before, sizeof point->before);
        }
        if (!skip_mcu(file, frame, scratch, mcu))
            return false;
    }
    if (!ends_well(file, scratch, true))
        return false;
    count_stuffed_bytes(file, frame, table);
    return true;
}

static Table take_table(Memory *memory, const Frame *frame, int64_t apart) {
    Table table = {.rows = frame->rows, .number = ceil_div(frame->columns, apart)};
    table.points = take(memory, table.rows * table.number, sizeof *table.points);
    return table;
}

// Numbers on their way to bytes: counted, and written if there is room for them.
typedef struct {
    int64_t bits[POINT_NUMBERS];  // that a number takes, by its kind
    int64_t bits_in_all;
    uint8_t *next;                // NULL while they are counted
    uint64_t word;                // whose lowest `held` bits are not written yet
    int64_t held;
} Writer;

static int64_t length_of(uint64_t number) { return number == 0 ? 0 : 64 - __builtin_clzll(number); }

static void put_number(Writer *writer, int64_t kind, int64_t number) {
    if (writer->next == NULL) {
        writer->bits[kind] = max_of(writer->bits[kind], length_of((uint64_t)number));
        return;
    }
    writer->word = writer->word << writer->bits[kind] | (uint64_t)number;
    for (writer->held += writer->bits[kind]; writer->held >= 8; writer->next++) {
        writer->held -= 8;
        *writer->next = (uint8_t)(writer->word >> writer->held);
    }
}

// All numbers of every step-th point of a table, in the order of the index.
static void put_points(Writer *writer, const Table *table, int64_t step) {
    for (int64_t row = 1; row < table->rows; row++) {
        const Point *first = &table->points[row * table->number];
        put_number(writer, ROW_DISTANCE, first->bit - (first - table->number)->bit);
    }
    for (int64_t row = 0; row < table->rows; row++)
        for (int64_t index = step; index < table->number; index += step) {
            const Point *point = &table->points[row * table->number + index];
            put_number(writer, STEP_DISTANCE, point->bit - (point - step)->bit);
        }
    for (int64_t row = 0; row < table->rows; row++)
        for (int64_t index = 0; index < table->number; index += step)
            for (int64_t component = 0; component < 3; component++) {
                int64_t before = table->points[row * table->number + index].before[component];
                put_number(writer, COEFFICIENT + component, before << 1 ^ before >> 63);
            }
}

// Writes every step-th point, if there is room. Returns how many bytes they take.
static int64_t write_points(const Table *table, int64_t step, int64_t file_size, uint8_t *bytes, int64_t room) {
    Writer writer = {0};
    put_points(&writer, table, step);
    int64_t in_a_row = ceil_div(table->number, step);
    int64_t bits_of_coefficients = writer.bits[COEFFICIENT] + writer.bits[COEFFICIENT + 1] + writer.bits[COEFFICIENT + 2];
    int64_t bits = (table->rows - 1) * writer.bits[ROW_DISTANCE];
    bits += table->rows * (in_a_row - 1) * writer.bits[STEP_DISTANCE];
    bits += table->rows * in_a_row * bits_of_coefficients;
    int64_t size = bytes_for_bits(bits);
    if (size > room)
        return size;
    memset(bytes, 0, (size_t)size);
    bytes[0] = (uint8_t)(step * FINEST);
    for (int kind = 0; kind < POINT_NUMBERS; kind++)
        bytes[1 + kind] = (uint8_t)writer.bits[kind];
    writer.next = bytes + HEAD_BYTES;
    put_points(&writer, table, step);
    *writer.next = (uint8_t)(writer.word << (8 - writer.held));
    uint64_t checksum = __builtin_bswap64(checksum_of((Span){bytes, size}, file_size));
    memcpy(bytes + size - CHECKSUM_BYTES, &checksum, CHECKSUM_BYTES);
    return size;
}

// What finding points returns instead of their bytes.
enum { NOT_SOUND = -1, NO_MEMORY = -2 };

static bool is_upright_of(const Frame *frame, Size size) {
    bool is_of_size = frame->height == size.height && frame->width == size.width;
    return frame->begin != 0 && is_of_size && frame->orientation == UPRIGHT;
}

// Writes the points of a JPEG of this size, as dense as there is room for. Returns the bytes written, 0 where there is no
// room or restart markers are within rows; NOT_SOUND where the file has a fault or is not decoded here. All of its coded
// pixels are read.
EXPORT int64_t find_points(
    const uint8_t *bytes, int64_t file_size, JpegScratch *scratch, int64_t height, int64_t width, uint8_t *points,
    int64_t room
) {
    Span file = {bytes, file_size};
    Frame frame = read_frame(file, scratch);
    if (!is_upright_of(&frame, (Size){height, width}))
        return NOT_SOUND;
    Memory memory = {0};
    Table table = take_table(&memory, &frame, FINEST);
    int64_t written = 0;
    if (memory.has_failed)
        written = NO_MEMORY;
    else if (!read_table(file, &frame, scratch, FINEST, &table))
        written = NOT_SOUND;
    else if (can_be_entered(&frame))
        for (int64_t step = 1; step * FINEST <= COARSEST;) {
            int64_t size = write_points(&table, step, file_size, points, room);
            if (size <= room) {
                written = size;
                break;
            }
            step = max_of(step * size / max_of(room, 1), step + 1);  // as many times fewer as there are too many bytes
        }
    release_all(&memory);
    return written;
}

static bool are_points_of(const Points *points, const Frame *frame, const Table *table) {
    for (int64_t row = 0; row < table->rows; row++) {
        int64_t row_at = row_begin(points, frame, row);
        for (int64_t index = 0; index < table->number; index++) {
            const Point *point = &table->points[row * table->number + index];
            if (point->bit != point_bit(points, frame, row, row_at, index))
                return false;
            for (int64_t component = 0; component < frame->components; component++)
                if (point->before[component] != coefficient_of(points, frame, row, index, component))
                    return false;
        }
    }
    return true;
}

// Whether these are points of a JPEG of this size: 1 or 0, or NO_MEMORY. All of its coded pixels are read.
EXPORT int64_t points_hold(
    const uint8_t *bytes, int64_t file_size, JpegScratch *scratch, int64_t height, int64_t width, const uint8_t *stored,
    int64_t stored_size
) {
    Span file = {bytes, file_size};
    Frame frame = read_frame(file, scratch);
    if (!is_upright_of(&frame, (Size){height, width}))
        return 0;
    Points points = read_points((Span){stored, stored_size}, file, &frame);
    if (points.apart == 0)
        return 0;
    Memory memory = {0};
    Table table = take_table(&memory, &frame, points.apart);
    int64_t holds = NO_MEMORY;
    if (!memory.has_failed)
        holds = read_table(file, &frame, scratch, points.apart, &table) && are_points_of(&points, &frame, &table);
    release_all(&memory);
    return holds;
}
