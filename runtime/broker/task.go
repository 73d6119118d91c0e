package broker

import "fmt"

// taskPrefix begins every task id and action key of a broker.
const taskPrefix = "codex-workspace"

// ID is the task's id in the log: a function of the instance, the payload and the attempt.
func (t Task) ID() string {
	return fmt.Sprintf("%s:%s:%s:%d", taskPrefix, t.Instance, t.PayloadHash, t.Attempt)
}

// Legs returns the task's legs, one for each class, in the order of the classes.
func (t Task) Legs() []Leg {
	legs := make([]Leg, len(t.Classes))
	for i, class := range t.Classes {
		legs[i] = Leg{Task: t.ID(), Key: t.ID() + ":" + class, Class: class, PayloadHash: t.PayloadHash}
	}
	return legs
}

// with is the task at another attempt.
func (t Task) with(attempt int) Task {
	t.Attempt = attempt
	return t
}
