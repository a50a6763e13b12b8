#include "inflate_reader.h"

// Keeps one code. False if it has a fault.
static bool keep_code(Inflater *inflater, Reader *reader, Tokens *kept) {
    refill(&reader->bits, &reader->count, &reader->next);
    uint32_t entry = look_up(inflater->tables.literals, reader, LITERAL_BITS);
    if (entry & SECOND)
        entry = look_up_second(inflater->tables.literals, reader, entry, LITERAL_BITS);
    if (!(entry & SPECIAL)) {
        uint8_t *end = put_literals(reader, entry, kept->out);
        kept->number = add_literals(kept->tokens, kept->number, end - kept->out);
        kept->out = end;
        return true;
    }
    if (entry & STOP) {
        consume(reader, entry);
        end_block(inflater);
        return entry >> VALUE_SHIFT == 0;
    }
    int64_t length = number_of(reader->bits, entry);
    consume(reader, entry);
    refill(&reader->bits, &reader->count, &reader->next);
    entry = look_up(inflater->tables.distances, reader, DISTANCE_BITS);
    if (entry & SECOND)
        entry = look_up_second(inflater->tables.distances, reader, entry, DISTANCE_BITS);
    int64_t distance = number_of(reader->bits, entry);
    consume(reader, entry);
    if (entry & STOP || distance > kept->out - kept->begin || distance > inflater->most_distance)
        return false;
    for (int64_t byte = 0; byte < length; byte++)
        kept->out[byte] = kept->out[byte - distance];
    kept->out += length;
    kept->tokens[kept->number++] = (Token){(uint16_t)length, (uint16_t)distance};
    return true;
}

static bool keep_codes(Inflater *inflater, Tokens *kept, const uint8_t *limit) {
    const uint8_t *end = inflater->is_complete ? inflater->end + LOOK_AHEAD : inflater->end - READ_AT_ONCE;
    Reader reader = {inflater->bits, inflater->count, inflater->next};
    bool is_right = true;
    while (is_right && inflater->phase == IN_CODES && kept->out < limit && reader.next <= end)
        is_right = keep_code(inflater, &reader, kept);
    inflater->bits = reader.bits;
    inflater->count = reader.count;
    inflater->next = reader.next;
    return is_right;
}

bool inflate_tokens(Inflater *inflater, Tokens *kept, const uint8_t *limit) {
    while (kept->out < limit && inflater->phase != AT_END) {
        if (inflater->phase == AT_BLOCK) {
            if (!begin_block(inflater))
                return false;
        } else if (inflater->phase == IN_STORED) {
            const uint8_t *stored_limit = kept->out + min_of(limit - kept->out, max_of(inflater->stored_left, 1));
            uint8_t *out = inflate(inflater, kept->begin, kept->out, stored_limit);
            if (out == NULL)
                return false;
            for (; kept->out < out; kept->out++)
                kept->number = add_literals(kept->tokens, kept->number, 1);
        } else if (!can_read(inflater, READ_AT_ONCE) || !keep_codes(inflater, kept, limit)) {
            return false;
        }
    }
    return true;
}
