package journal

// Queued is the number of appends that wait for the writer.
func Queued(j *Journal) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.queue)
}
