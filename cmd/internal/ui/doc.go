// Package ui is what our command-line programs have in common: streams, colour, tables,
// JSON output, errors people can act on, and exit codes.
//
// The conventions: exit 0 when what was asked is done, 1 when it failed or was refused,
// 2 when the command line itself is wrong. An error has a stable code, a message and,
// wherever there is one, the next step; it goes to standard error, and with --json it is
// one document on standard output instead. Colour is used on a terminal only and never
// when NO_COLOR is set; progress is shown on a terminal only. Every command has an
// example. The package knows nothing of what the programs do.
package ui
