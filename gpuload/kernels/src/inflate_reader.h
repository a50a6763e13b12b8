// What reads the codes of a stream: shared by what writes bytes (inflate_codes.c) and what keeps tokens (inflate_tokens.c).

#pragma once

#include "inflate.h"

// The most that is read at a time between two looks at the end: two words.
enum { READ_AT_ONCE = 32, LOOK_AHEAD = 8 };

static inline void refill(uint64_t *bits, uint32_t *count, const uint8_t **next) {
    *bits |= load_little_endian(*next) << (*count & 63);
    *next += 7 - (*count >> 3 & 7);
    *count |= 56;
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

// Writes one or two literals.
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

// Whether `number` more bytes can be read, with zeros after the last ones.
bool can_read(Inflater *inflater, int64_t number);

// Reads what a block begins with. False if it has a fault.
bool begin_block(Inflater *inflater);

static inline void end_block(Inflater *inflater) { inflater->phase = inflater->is_last_block ? AT_END : AT_BLOCK; }
