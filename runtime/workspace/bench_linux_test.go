package workspace

import (
	"fmt"
	"os"
	"testing"
)

// BenchmarkCopyTree copies 2000 small files in 100 directories, and one large
// file, to tmpfs, as a session's start does.
func BenchmarkCopyTree(b *testing.B) {
	src := tempDir(b)
	for i := range 100 {
		dir := fmt.Sprintf("%s/d%d", src, i)
		must(b, os.Mkdir(dir, 0o755))
		for j := range 20 {
			must(b, os.WriteFile(fmt.Sprintf("%s/f%d", dir, j), make([]byte, 500*(j+1)), 0o644))
		}
	}
	large := make([]byte, 64<<20)
	for i := range large {
		large[i] = byte(i)
	}
	big := tempDir(b)
	must(b, os.WriteFile(big+"/big", large, 0o644))
	for name, from := range map[string]string{"small": src, "large": big} {
		b.Run(name, func(b *testing.B) {
			p := pin(b, from)
			bytes, entries, err := Measure(b.Context(), p)
			must(b, err)
			base, err := os.MkdirTemp("/dev/shm", "glove-bench-")
			must(b, err)
			defer os.RemoveAll(base)
			dir := openDirFile(b, base)
			b.SetBytes(int64(bytes))
			for b.Loop() {
				must(b, os.Mkdir(base+"/copy", 0o700))
				dst, err := os.Open(base + "/copy")
				must(b, err)
				_, err = CopyTree(b.Context(), p, dst, options())
				must(b, err)
				dst.Close()
				b.StopTimer()
				must(b, RemoveTree(dir, "copy"))
				b.StartTimer()
			}
			b.ReportMetric(float64(entries)*float64(b.N)/b.Elapsed().Seconds(), "entries/s")
		})
	}
}
