// The decoder of deflate (RFC 1951), of bytes that lie in the chunks of a PNG, a piece at a time.
//
// It writes to memory of the caller, which keeps the last 32 KiB before what is written next.

#pragma once

#include "deflate_tables.h"
#include "picture.h"

enum {
    HISTORY_BYTES = 32 << 10,
    BEYOND_BYTES = 320,  // that are written beyond a limit at most: a few literals and a match
    STAGED_BYTES = 24 << 10,
    PADDING_BYTES = 1 << 10,  // zeros, more than a block's header reads beyond the end
};

enum InflatePhase { AT_BLOCK, IN_STORED, IN_CODES, AT_END };

typedef struct {
    // The next bits, from the lowest; the low byte of `count` says how many of them there are.
    uint64_t bits;
    uint32_t count;
    const uint8_t *next;
    // Bytes copied out of the chunks: up to `end`, and after the last ones zeros.
    const uint8_t *end;
    bool is_complete;
    Span file;
    int64_t at;            // in the file, of the next byte to copy
    int64_t left;          // bytes of this chunk after it
    enum InflatePhase phase;
    bool is_last_block;
    int64_t stored_left;
    int64_t most_distance;
    DeflateTables tables;
    uint8_t staged[STAGED_BYTES + PADDING_BYTES];
} Inflater;

// Prepares to read from byte `at` of a file on, which lies in the content of an IDAT chunk with `left` more bytes.
void begin_inflating(Inflater *inflater, Span file, int64_t at, int64_t left, int64_t most_distance);

// Reads the two bytes that begin a zlib stream (RFC 1950). False if they are not right.
bool read_stream_header(Inflater *inflater);

// Writes from `out` on until `limit` is reached, or passed by less than BEYOND_BYTES, or the last block ends. begin: of the
// bytes written before, that matches may repeat. Returns where the written bytes end; NULL if the stream has a fault.
uint8_t *inflate(Inflater *inflater, const uint8_t *begin, uint8_t *out, const uint8_t *limit);

// Some literals (distance 0), or a match.
enum { MOST_LITERALS = 1024 };
typedef struct {
    uint16_t length, distance;
} Token;

// Adds literals to tokens, and returns how many tokens there are then.
static inline int64_t add_literals(Token *tokens, int64_t number, int64_t literals) {
    bool continues = number > 0 && tokens[number - 1].distance == 0 && tokens[number - 1].length + literals <= MOST_LITERALS;
    if (continues)
        tokens[number - 1].length = (uint16_t)(tokens[number - 1].length + literals);
    else
        tokens[number++] = (Token){(uint16_t)literals, 0};
    return number;
}

// What was written, from `begin` to `out`, and the last tokens of it.
typedef struct {
    const uint8_t *begin;
    uint8_t *out;
    Token *tokens;
    int64_t number;
} Tokens;

// As `inflate`, and keeps the tokens: one for each byte written at most. False if the stream has a fault.
bool inflate_tokens(Inflater *inflater, Tokens *kept, const uint8_t *limit);

// Whether a stream whose last block has ended ends with the checksum of what it contains.
bool ends_with_adler(Inflater *inflater, uint32_t adler);
