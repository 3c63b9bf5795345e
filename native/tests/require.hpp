// Ends the program, and says where, if a condition does not hold.
#pragma once

#include <cstdio>
#include <cstdlib>

#define REQUIRE(condition)                                               \
    do {                                                                 \
        if (!(condition)) {                                              \
            std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
            std::abort();                                                \
        }                                                                \
    } while (0)
