// Package codex tests the approval program's codex commands as installed: the real binary, the real
// gate, a real client of the tool server, and the confined room, in which every act that must fail
// is first done outside, where it must work.
package codex
