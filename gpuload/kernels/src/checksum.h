// The checksums of PNG: CRC-32 (ISO 3309) of its chunks, and Adler-32 (RFC 1950) of what is compressed.

#pragma once

#include "common.h"

uint32_t crc_of(const uint8_t *bytes, int64_t size);

// The Adler-32 of bytes before, followed by these. Of no bytes it is ADLER_BEGIN.
enum { ADLER_BEGIN = 1 };
uint32_t continue_adler(uint32_t adler, const uint8_t *bytes, int64_t size);
