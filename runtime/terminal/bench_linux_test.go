package terminal

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkThroughput compares the channel with a loop that does nothing but
// read the master, turn by turn in one run, and reports the ratio of the two
// speeds. The goal is at least 0.8.
func BenchmarkThroughput(b *testing.B) {
	const volume = 64 << 20
	role := fmt.Sprint("bytes ", volume)
	var bare, channel time.Duration
	for b.Loop() {
		bare += timeBare(b, role, volume)
		channel += timeChannel(b, role, volume)
	}
	mib := float64(b.N) * volume / (1 << 20)
	b.ReportMetric(mib/bare.Seconds(), "bare-MiB/s")
	b.ReportMetric(mib/channel.Seconds(), "channel-MiB/s")
	b.ReportMetric(bare.Seconds()/channel.Seconds(), "ratio")
}

func timeBare(b *testing.B, role string, volume int) time.Duration {
	master, slave := openPTY(b)
	defer master.Close()
	begin := time.Now()
	start(b, slave, role)
	buf := make([]byte, 64<<10)
	total := 0
	for {
		n, err := master.Read(buf)
		total += n
		if err != nil {
			break
		}
	}
	if total != volume {
		b.Fatalf("bare loop read %d bytes", total)
	}
	return time.Since(begin)
}

func timeChannel(b *testing.B, role string, volume int) time.Duration {
	master, slave := openPTY(b)
	begin := time.Now()
	c := open(b, master, Config{})
	start(b, slave, role)
	<-c.Done()
	if c.Total() != uint64(volume) {
		b.Fatalf("channel read %d bytes", c.Total())
	}
	took := time.Since(begin)
	c.Close()
	return took
}
