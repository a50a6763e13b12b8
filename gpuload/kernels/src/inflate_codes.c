#include "inflate_reader.h"

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
