// What the processor can do beyond what this library was compiled for.

#pragma once

#include "common.h"

// The x86-64 level of this processor and operating system: 1, 2, 3 or 4; 0 on other processors.
EXPORT int64_t processor_level(void);

// Writes what a table of 256 has for each byte, by vectors, as far as this processor has an instruction for it (AVX-512
// VBMI): one by one they take six times as long. Returns how many bytes are done.
int64_t look_up_vectors(const uint8_t table[256], const uint8_t *source, int64_t bytes, uint8_t *result);

// Replaces the first bytes of a message, by multiplications without carry, by FOLDED_BYTES whose CRC-32 (of polynomial
// 0xEDB88320, begun with zeros) continues as that of the message begun with ones does. Returns how many bytes these replace,
// a multiple of 64; 0 where the processor has no such instruction, or too few bytes are given.
enum { FOLDED_BYTES = 16 };
int64_t fold_bytes(const uint8_t *bytes, int64_t size, uint8_t folded[FOLDED_BYTES]);
