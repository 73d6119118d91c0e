// Package run tests glove run, glove doctor and glove sessions from outside: the real
// program, built once, started from scripts (testdata/script: command lines, what they
// must print and how they must end), at a terminal of the test's own, as root and as an
// unprivileged user, and against a resident gloved.
//
// Its nouns are the desk (a pseudo-terminal with somebody at it, who types, resizes and
// waits for text to appear) and the house (a resident gloved with a session in it).
//
// It is not for the sandbox's strength, which runtime/sandbox and integration/escape
// test, nor for the protocol by itself.
package run
