package bench

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/require"
)

// stampCode writes the monotonic clock to standard output as its first act: any
// runtime or dynamic loader before it would be measured too.
var stampCode = []byte{
	0x48, 0x83, 0xec, 0x10, // sub  rsp, 16
	0xb8, 0xe4, 0, 0, 0, // mov  eax, 228 (clock_gettime)
	0xbf, 0x01, 0, 0, 0, // mov  edi, 1 (CLOCK_MONOTONIC)
	0x48, 0x89, 0xe6, // mov  rsi, rsp
	0x0f, 0x05, // syscall
	0xb8, 0x01, 0, 0, 0, // mov  eax, 1 (write)
	0xbf, 0x01, 0, 0, 0, // mov  edi, 1
	0x48, 0x89, 0xe6, // mov  rsi, rsp
	0xba, 0x10, 0, 0, 0, // mov  edx, 16
	0x0f, 0x05, // syscall
	0xb8, 0x3c, 0, 0, 0, // mov  eax, 60 (exit)
	0x31, 0xff, // xor  edi, edi
	0x0f, 0x05, // syscall
}

// writeStamp writes the program that tells when it began, an ELF file of one
// segment, into dir.
func writeStamp(b *testing.B, dir string) string {
	b.Helper()
	if runtime.GOARCH != "amd64" {
		require.Skip(b, "the program that tells when it began is written for amd64")
	}
	const headers, base = 64 + 56, 0x400000
	var f bytes.Buffer
	f.WriteString("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	size := uint64(headers + len(stampCode))
	for _, field := range []any{
		// ELF header: executable, x86-64, version, entry, program headers, sections, flags, sizes and counts
		uint16(2), uint16(62), uint32(1), uint64(base + headers), uint64(64), uint64(0), uint32(0),
		uint16(64), uint16(56), uint16(1), uint16(0), uint16(0), uint16(0),
		// program header: PT_LOAD, read and execute, offset, addresses, sizes, alignment
		uint32(1), uint32(5), uint64(0), uint64(base), uint64(base), size, size, uint64(0x1000),
	} {
		_ = binary.Write(&f, binary.LittleEndian, field) // a Buffer takes everything
	}
	f.Write(stampCode)
	path := filepath.Join(dir, "stamp")
	must(b, os.WriteFile(path, f.Bytes(), 0o755))
	return path
}

// stamped reads what stamp wrote, also through a terminal, which sends a line
// feed as carriage return and line feed.
func stamped(out []byte) (time.Duration, error) {
	if len(out) > 16 {
		out = bytes.ReplaceAll(out, []byte("\r\n"), []byte("\n"))
	}
	if len(out) != 16 {
		return 0, fmt.Errorf("stamp wrote %d bytes", len(out))
	}
	seconds, rest := binary.LittleEndian.Uint64(out), binary.LittleEndian.Uint64(out[8:])
	return time.Duration(seconds)*time.Second + time.Duration(rest), nil
}

// monotonic reads the clock that stamp reads.
func monotonic() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return time.Duration(t.Nano())
}
