#include "inflate.h"

// The most that is read at a time between two looks at the end: two words.
enum { READ_AT_ONCE = 32, LOOK_AHEAD = 8 };

enum { MOST_LITERAL_SYMBOLS = 286 };

// Input.

// Copies the unread bytes to the front, and further ones of the file behind them.
static void stage(Inflater *inflater) {
    int64_t unread = inflater->end - inflater->next;
    memmove(inflater->staged, inflater->next, (size_t)unread);
    uint8_t *end = inflater->staged + unread;
    uint8_t *limit = inflater->staged + STAGED_BYTES;
    const uint8_t *bytes = inflater->file.bytes;
    while (end < limit && !inflater->is_complete) {
        int64_t number = min_of(limit - end, inflater->left);
        memcpy(end, bytes + inflater->at, (size_t)number);
        end += number;
        inflater->at += number;
        inflater->left -= number;
        if (inflater->left > 0)
            continue;
        const uint8_t *next_chunk = bytes + inflater->at + 4;  // after the checksum
        inflater->is_complete = memcmp(next_chunk + 4, "IDAT", 4) != 0;
        inflater->left = (int64_t)(load_big_endian(next_chunk) >> 32);
        inflater->at += 12;
    }
    inflater->next = inflater->staged;
    inflater->end = end;
    memset(end, 0, PADDING_BYTES);
}

// Whether `number` more bytes can be read, with zeros after the last ones.
static bool can_read(Inflater *inflater, int64_t number) {
    if (!inflater->is_complete && inflater->end - inflater->next < number)
        stage(inflater);
    return inflater->next <= inflater->end + LOOK_AHEAD;
}

static inline void refill(uint64_t *bits, uint32_t *count, const uint8_t **next) {
    *bits |= load_little_endian(*next) << (*count & 63);
    *next += 7 - (*count >> 3 & 7);
    *count |= 56;
}

static uint32_t take_bits(Inflater *inflater, int64_t number) {
    refill(&inflater->bits, &inflater->count, &inflater->next);
    uint32_t value = (uint32_t)(inflater->bits & ((1ULL << number) - 1));
    inflater->bits >>= number;
    inflater->count -= (uint32_t)number;
    return value;
}

void begin_inflating(Inflater *inflater, Span file, int64_t at, int64_t left, int64_t most_distance) {
    inflater->bits = 0;
    inflater->count = 0;
    inflater->next = inflater->end = inflater->staged;
    inflater->is_complete = false;
    inflater->file = file;
    inflater->at = at;
    inflater->left = left;
    inflater->phase = AT_BLOCK;
    inflater->is_last_block = false;
    inflater->most_distance = most_distance;
    stage(inflater);
}

bool read_stream_header(Inflater *inflater) {
    uint32_t method = take_bits(inflater, 8);
    uint32_t flags = take_bits(inflater, 8);
    inflater->most_distance = 256 << (method >> 4);
    return (method & 15) == 8 && method >> 4 <= 7 && (method << 8 | flags) % 31 == 0 && !(flags & 32);
}

// Blocks.

// Reads the lengths of the codes of a block, as codes of their own.
static bool read_lengths(Inflater *inflater, int64_t number, uint8_t *lengths) {
    int64_t done = 0;
    while (done < number) {
        refill(&inflater->bits, &inflater->count, &inflater->next);
        uint32_t entry = inflater->tables.precode[inflater->bits & ((1 << PRECODE_BITS) - 1)];
        inflater->bits >>= entry & 63;
        inflater->count -= entry & 63;
        uint32_t symbol = entry >> VALUE_SHIFT;
        if (symbol < 16) {
            lengths[done++] = (uint8_t)symbol;
            continue;
        }
        uint8_t repeated = 0;
        int64_t times;
        if (symbol == 16) {
            if (done == 0)
                return false;
            repeated = lengths[done - 1];
            times = 3 + take_bits(inflater, 2);
        } else {
            times = symbol == 17 ? 3 + take_bits(inflater, 3) : 11 + take_bits(inflater, 7);
        }
        if (done + times > number)
            return false;
        memset(lengths + done, repeated, (size_t)times);
        done += times;
    }
    return true;
}

static bool make_tables(Inflater *inflater, const uint8_t *lengths, int64_t literals, int64_t distances) {
    return make_literal_table(&inflater->tables, lengths, literals) &&
           make_distance_table(&inflater->tables, lengths + literals, distances);
}

static bool read_dynamic_codes(Inflater *inflater) {
    static const uint8_t order[PRECODE_SYMBOLS] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    int64_t literals = 257 + take_bits(inflater, 5);
    int64_t distances = 1 + take_bits(inflater, 5);
    int64_t in_precode = 4 + take_bits(inflater, 4);
    if (literals > MOST_LITERAL_SYMBOLS || distances > DISTANCES)
        return false;
    uint8_t precode[PRECODE_SYMBOLS] = {0};
    int64_t sum = 0;
    for (int64_t place = 0; place < in_precode; place++) {
        precode[order[place]] = (uint8_t)take_bits(inflater, 3);
        sum += precode[order[place]] == 0 ? 0 : 1 << (PRECODE_BITS - precode[order[place]]);
    }
    uint8_t lengths[MOST_LITERAL_SYMBOLS + DISTANCES];
    bool is_full = sum == 1 << PRECODE_BITS;
    if (!is_full || !make_precode_table(&inflater->tables, precode) || !read_lengths(inflater, literals + distances, lengths))
        return false;
    return lengths[END_OF_BLOCK] > 0 && make_tables(inflater, lengths, literals, distances);
}

static bool set_fixed_codes(Inflater *inflater) {
    uint8_t lengths[LITERAL_SYMBOLS + DISTANCE_SYMBOLS];
    memset(lengths, 8, 144);
    memset(lengths + 144, 9, 112);
    memset(lengths + 256, 7, 24);
    memset(lengths + 280, 8, 8);
    memset(lengths + LITERAL_SYMBOLS, 5, DISTANCE_SYMBOLS);
    return make_tables(inflater, lengths, LITERAL_SYMBOLS, DISTANCE_SYMBOLS);
}

// Drops the rest of a byte, and gives whole bytes that were read ahead back.
static void align(Inflater *inflater) {
    inflater->next -= inflater->count >> 3 & 7;
    inflater->bits = 0;
    inflater->count = 0;
}

static bool begin_stored(Inflater *inflater) {
    align(inflater);
    uint32_t size = take_bits(inflater, 16);
    uint32_t complement = take_bits(inflater, 16);
    align(inflater);
    inflater->stored_left = size;
    return (size ^ complement) == 0xFFFF;
}

static bool begin_block(Inflater *inflater) {
    if (!can_read(inflater, PADDING_BYTES))
        return false;
    inflater->is_last_block = take_bits(inflater, 1);
    uint32_t kind = take_bits(inflater, 2);
    if (kind == 0) {
        inflater->phase = IN_STORED;
        return begin_stored(inflater);
    }
    inflater->phase = IN_CODES;
    if (kind == 1)
        return set_fixed_codes(inflater);
    return kind == 2 && read_dynamic_codes(inflater);
}

static void end_block(Inflater *inflater) { inflater->phase = inflater->is_last_block ? AT_END : AT_BLOCK; }

static uint8_t *copy_stored(Inflater *inflater, uint8_t *out, const uint8_t *limit) {
    while (inflater->stored_left > 0 && out < limit) {
        if (!can_read(inflater, 1) || inflater->next >= inflater->end)
            return NULL;
        int64_t number = min_of(min_of(inflater->stored_left, limit - out), inflater->end - inflater->next);
        memcpy(out, inflater->next, (size_t)number);
        out += number;
        inflater->next += number;
        inflater->stored_left -= number;
    }
    if (inflater->stored_left == 0)
        end_block(inflater);
    return out;
}

typedef uint8_t U8x16 __attribute__((vector_size(16)));

// Writes `length` bytes as those `distance` before, and up to 15 more.
static inline void repeat(uint8_t *out, int64_t distance, int64_t length) {
    const uint8_t *source = out - distance;
    const uint8_t *end = out + length;
    if (distance >= 16) {
        do {
            memcpy(out, source, 16);
            out += 16;
            source += 16;
        } while (out < end);
        return;
    }
    if (distance == 1) {
        U8x16 same = (U8x16){0} + *source;
        do {
            memcpy(out, &same, 16);
            out += 16;
        } while (out < end);
        return;
    }
    if (distance >= 8) {
        do {
            memcpy(out, source, 8);
            out += 8;
            source += 8;
        } while (out < end);
        return;
    }
    uint64_t word = load_little_endian(source) & ((1ULL << 8 * distance) - 1);
    int64_t step = distance;
    while (step <= 4) {
        word |= word << 8 * step;
        step *= 2;
    }
    do {
        memcpy(out, &word, 8);
        out += step;
    } while (out < end);
}

// The bits of a number after a code, of which `entry` tells, in bits that begin with the code.
static inline int64_t number_of(uint64_t bits, uint32_t entry) {
    uint64_t with_code = bits & ((1ULL << (entry & 63)) - 1);
    return (int64_t)(entry >> VALUE_SHIFT) + (int64_t)(with_code >> (entry >> COUNT_SHIFT & 15));
}

// A place in a stream. The functions below keep it in registers.
typedef struct {
    uint64_t bits;
    uint32_t count;
    const uint8_t *next;
} Reader;

static inline void consume(Reader *reader, uint32_t entry) {
    reader->bits >>= entry & 63;
    reader->count -= entry;
}

static inline uint8_t *put_literals(Reader *reader, uint32_t entry, uint8_t *out) {
    uint16_t literals = (uint16_t)(entry >> VALUE_SHIFT);
    memcpy(out, &literals, 2);
    consume(reader, entry);
    return out + (entry >> COUNT_SHIFT & 3);
}

static inline uint32_t look_up(const uint32_t *entries, const Reader *reader, int64_t bits) {
    return entries[reader->bits & ((1ULL << bits) - 1)];
}

// The entry of a code that is longer than the index of the first table, whose bits are read past.
static inline uint32_t look_up_second(const uint32_t *entries, Reader *reader, uint32_t entry, int64_t bits) {
    reader->bits >>= bits;
    reader->count -= (uint32_t)bits;
    return entries[(entry >> VALUE_SHIFT) + (reader->bits & ((1ULL << (entry >> COUNT_SHIFT & 15)) - 1))];
}

// Decodes up to the end of a block, to a limit of the output, or to the end of what is staged. NULL at a fault.
static uint8_t *decode_codes(Inflater *inflater, const uint8_t *begin, uint8_t *out, const uint8_t *limit) {
    const uint32_t *literals = inflater->tables.literals;
    const uint32_t *distances = inflater->tables.distances;
    const uint8_t *end = inflater->is_complete ? inflater->end + LOOK_AHEAD : inflater->end - READ_AT_ONCE;
    Reader reader = {inflater->bits, inflater->count, inflater->next};
    uint8_t *result = NULL;
    for (;;) {
        if (out >= limit || reader.next > end) {
            result = out;
            break;
        }
        refill(&reader.bits, &reader.count, &reader.next);
        uint32_t entry = look_up(literals, &reader, LITERAL_BITS);
        if (!(entry & SPECIAL)) {
            out = put_literals(&reader, entry, out);
            entry = look_up(literals, &reader, LITERAL_BITS);
            if (!(entry & SPECIAL)) {
                out = put_literals(&reader, entry, out);
                entry = look_up(literals, &reader, LITERAL_BITS);
                if (!(entry & SPECIAL)) {
                    out = put_literals(&reader, entry, out);
                    entry = look_up(literals, &reader, LITERAL_BITS);
                    if (!(entry & SPECIAL)) {
                        out = put_literals(&reader, entry, out);
                        continue;
                    }
                }
            }
        }
        if (entry & (SECOND | STOP)) {
            if (entry & SECOND)
                entry = look_up_second(literals, &reader, entry, LITERAL_BITS);
            if (!(entry & SPECIAL)) {
                out = put_literals(&reader, entry, out);
                continue;
            }
            if (entry & STOP) {
                consume(&reader, entry);
                result = entry >> VALUE_SHIFT ? NULL : out;
                end_block(inflater);
                break;
            }
        }
        int64_t length = number_of(reader.bits, entry);
        consume(&reader, entry);
        refill(&reader.bits, &reader.count, &reader.next);
        entry = look_up(distances, &reader, DISTANCE_BITS);
        if (entry & SECOND)
            entry = look_up_second(distances, &reader, entry, DISTANCE_BITS);
        int64_t distance = number_of(reader.bits, entry);
        consume(&reader, entry);
        if (entry & STOP || distance > out - begin || distance > inflater->most_distance)
            break;
        repeat(out, distance, length);
        out += length;
    }
    inflater->bits = reader.bits;
    inflater->count = reader.count;
    inflater->next = reader.next;
    return result;
}

uint8_t *inflate(Inflater *inflater, const uint8_t *begin, uint8_t *out, const uint8_t *limit) {
    while (out != NULL && out < limit && inflater->phase != AT_END) {
        if (inflater->phase == AT_BLOCK) {
            if (!begin_block(inflater))
                return NULL;
        } else if (inflater->phase == IN_STORED) {
            out = copy_stored(inflater, out, limit);
        } else if (!can_read(inflater, READ_AT_ONCE)) {
            return NULL;
        } else {
            out = decode_codes(inflater, begin, out, limit);
        }
    }
    return out;
}

bool ends_with_adler(Inflater *inflater, uint32_t adler) {
    if (inflater->phase != AT_END)
        return false;
    align(inflater);
    uint32_t written = 0;
    for (int byte = 0; byte < 4; byte++)
        written = written << 8 | take_bits(inflater, 8);
    align(inflater);
    return written == adler && inflater->next <= inflater->end;
}
