#include "inflate_reader.h"

enum { MOST_LITERAL_SYMBOLS = 286 };

// Input.

// Gives back the whole bytes among the bits that were read ahead.
static void give_back(Inflater *inflater) {
    inflater->next -= inflater->count >> 3 & 7;
    inflater->count &= 7;
    inflater->bits &= (1ULL << inflater->count) - 1;
}

// Copies the unread bytes to the front, and further ones of the file behind them.
static void stage(Inflater *inflater) {
    give_back(inflater);
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

bool can_read(Inflater *inflater, int64_t number) {
    if (!inflater->is_complete && inflater->end - inflater->next < number)
        stage(inflater);
    return inflater->next <= inflater->end + LOOK_AHEAD;
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

// Drops the rest of a byte.
static void align(Inflater *inflater) {
    give_back(inflater);
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

bool begin_block(Inflater *inflater) {
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
