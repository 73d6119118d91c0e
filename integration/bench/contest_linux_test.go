package bench

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// A contestant does the contest's work once and says how long it took.
type contestant struct {
	name string
	turn func() (time.Duration, error)
}

// A result is what the rounds gave for one contestant.
type result struct {
	name string
	took []time.Duration
}

func (r *result) sorted() []time.Duration { return slices.Sorted(slices.Values(r.took)) }

func (r *result) median() time.Duration { return r.at(50) }

// at returns the value that percent of the rounds do not exceed.
func (r *result) at(percent int) time.Duration {
	s := r.sorted()
	return s[min(len(s)*percent/100, len(s)-1)]
}

// quiet comes before every turn, so that nobody pays for what the one before
// left to be done: by the kernel, or a gloved that readies its next monitor.
const quiet = 150 * time.Millisecond

// compete lets everybody take turns: first warm-up rounds that do not count,
// then the ones that do.
func compete(b *testing.B, rounds int, everybody ...contestant) []*result {
	b.Helper()
	const warmUp = 3
	results := make([]*result, len(everybody))
	for i, c := range everybody {
		results[i] = &result{name: c.name}
	}
	for round := range rounds + warmUp {
		for i, c := range everybody {
			<-time.After(quiet)
			took, err := c.turn()
			if err != nil {
				b.Fatalf("%s, round %d: %v", c.name, round, err)
			}
			if round >= warmUp {
				results[i].took = append(results[i].took, took)
			}
		}
	}
	return results
}

// A goal is a ratio to hold: at most, or at least.
type goal struct {
	against string
	ratio   float64
	atLeast bool
}

func (g goal) String() string {
	if g.atLeast {
		return fmt.Sprintf("at least %.2f", g.ratio)
	}
	return fmt.Sprintf("under %.2f", g.ratio)
}

func (g goal) verdict(ratio float64) string {
	if g.atLeast == (ratio >= g.ratio) {
		return "held"
	}
	return "MISSED"
}

// report prints the results of a contest, the first contestant's ratio to each
// of the others, and the goals. value makes a duration into what is compared.
func report(b *testing.B, title string, results []*result, value func(time.Duration) float64, unit string, goals ...goal) {
	b.Helper()
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "%s (%d rounds)\tmedian %s\t10 %%\t90 %%\tours / theirs\tgoal\t\n", title, len(results[0].took), unit)
	ours := value(results[0].median())
	for i, r := range results {
		fmt.Fprintf(w, "  %s\t%.3g\t%.3g\t%.3g\t", r.name, value(r.median()), value(r.at(10)), value(r.at(90)))
		if i > 0 {
			ratio := ours / value(r.median())
			fmt.Fprintf(w, "%.2f\t", ratio)
			b.ReportMetric(ratio, "ours/"+strings.ReplaceAll(r.name, " ", "_"))
			if g := slices.IndexFunc(goals, func(g goal) bool { return g.against == r.name }); g >= 0 {
				fmt.Fprintf(w, "%s: %s\t", goals[g], goals[g].verdict(ratio))
			}
		}
		fmt.Fprintln(w)
	}
	w.Flush()
	printOnce()
	fmt.Printf("\n%s", out.String())
}

// milliseconds and perSecond are values of report.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// perSecond returns how many of n happen in a second.
func perSecond(n float64) func(time.Duration) float64 {
	return func(d time.Duration) float64 { return n / d.Seconds() }
}

var printed bool

// printOnce prints the machine's facts, without which numbers mean nothing.
func printOnce() {
	if printed {
		return
	}
	printed = true
	var u unix.Utsname
	_ = unix.Uname(&u)
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("\n%s, Linux %s, %d CPUs (%s), %s, load %s\n", runtime.GOARCH, unix.ByteSliceToString(u.Release[:]),
		runtime.NumCPU(), cpuModel(), runtime.Version(), strings.TrimSpace(string(load)))
}

func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}
