// RocketMQ's Go client of the proxy (gRPC) at work.
//
//	go5client ENDPOINT PREFIX SCENARIO [STOP]
//
// Topics and groups begin with PREFIX. Prints one JSON object with what the client saw, and exits with 1 if the client
// reported an error. The client's own log goes below the folder that the variable rocketmq.client.logRoot names.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

type seen map[string]interface{}

var (
	endpoint, prefix string
	scenarios        = map[string]func() (seen, error){
		"simple": simple, "ordered": ordered, "timed": timed, "transactions": transactions, "push": push, "kill": kill,
	}
)

func main() {
	if len(os.Args) < 4 || scenarios[os.Args[3]] == nil {
		fmt.Fprintln(os.Stderr, "go5client ENDPOINT PREFIX SCENARIO [STOP]")
		os.Exit(2)
	}
	endpoint, prefix = os.Args[1], os.Args[2]
	found, err := scenarios[os.Args[3]]()
	if found == nil {
		found = seen{}
	}
	if err != nil {
		found["error"] = err.Error()
	}
	text, _ := json.Marshal(found)
	fmt.Println(string(text))
	if err != nil {
		os.Exit(1)
	}
}

// simple sends messages with tags and properties; a simple consumer filters, acknowledges and hides.
func simple() (seen, error) {
	topic := prefix + "Normal"
	p, err := producer(rmq.WithTopics(topic))
	if err != nil {
		return nil, err
	}
	for i := 0; i < 20; i++ {
		message := text(topic, fmt.Sprintf("m%d", i))
		message.SetTag([]string{"even", "odd"}[i%2])
		message.SetKeys(fmt.Sprintf("k%d", i))
		message.AddProperty("number", fmt.Sprint(i))
		if err := send(p, message); err != nil {
			return nil, err
		}
	}
	if err := p.GracefulStop(); err != nil {
		return nil, err
	}
	found := seen{}
	even := rmq.NewFilterExpression("even")
	if found["even"], err = receive("simple_even", topic, even, 10, 20*time.Second); err != nil {
		return found, err
	}
	sql := rmq.NewFilterExpressionWithType("number BETWEEN 3 AND 6", rmq.SQL92)
	if found["sql"], err = receive("simple_sql", topic, sql, 4, 20*time.Second); err != nil {
		return found, err
	}
	// The group has acknowledged all of them.
	if found["again"], err = receive("simple_even", topic, even, 1, 4*time.Second); err != nil {
		return found, err
	}
	return found, hide(topic, found)
}

func hide(topic string, found seen) error {
	c, err := consumer("simple_hide", topic, rmq.NewFilterExpression("odd"))
	if err != nil {
		return err
	}
	defer c.GracefulStop()
	hidden, back := map[string]bool{}, map[string]bool{}
	first, attempt := time.Duration(0), int32(0)
	err = each(c, time.Minute, 20*time.Second, func(view *rmq.MessageView) (bool, error) {
		hidden[string(view.GetBody())] = true
		return len(hidden) == 10, c.ChangeInvisibleDuration(view, 11*time.Second)
	})
	if err != nil {
		return err
	}
	began := time.Now()
	err = each(c, time.Minute, 40*time.Second, func(view *rmq.MessageView) (bool, error) {
		if first == 0 {
			first = time.Since(began)
		}
		attempt = view.GetDeliveryAttempt()
		back[string(view.GetBody())] = true
		return len(back) == 10, c.Ack(context.Background(), view)
	})
	found["hidden"], found["back"], found["first_ms"], found["attempt"] =
		len(hidden), len(back), first.Milliseconds(), attempt
	return err
}

// ordered has two message groups; the first try of one message fails, and those behind it wait.
func ordered() (seen, error) {
	topic := prefix + "Ordered"
	p, err := producer(rmq.WithTopics(topic))
	if err != nil {
		return nil, err
	}
	defer p.GracefulStop()
	for i := 0; i < 40; i++ {
		message := text(topic, fmt.Sprint(i/2))
		message.SetMessageGroup(fmt.Sprintf("g%d", i%2))
		if err := send(p, message); err != nil {
			return nil, err
		}
	}
	var mutex sync.Mutex
	got := map[string][]string{}
	tries := 0
	c, err := pushConsumer("ordered_push", topic, func(view *rmq.MessageView) rmq.ConsumerResult {
		mutex.Lock()
		defer mutex.Unlock()
		group, body := *view.GetMessageGroup(), string(view.GetBody())
		if group == "g1" && body == "7" {
			if tries++; tries == 1 {
				return rmq.FAILURE
			}
		}
		got[group] = append(got[group], body)
		return rmq.SUCCESS
	})
	if err != nil {
		return nil, err
	}
	until(40*time.Second, func() bool {
		mutex.Lock()
		defer mutex.Unlock()
		return len(got["g0"]) >= 20 && len(got["g1"]) >= 20
	})
	err = c.GracefulStop()
	return seen{"g0": got["g0"], "g1": got["g1"], "tries": tries}, err
}

// timed sends a message for later. This client recalls nothing.
func timed() (seen, error) {
	topic := prefix + "Timed"
	p, err := producer(rmq.WithTopics(topic))
	if err != nil {
		return nil, err
	}
	defer p.GracefulStop()
	due := time.Now().Add(3 * time.Second)
	message := text(topic, "later")
	message.SetDelayTimestamp(due)
	if err := send(p, message); err != nil {
		return nil, err
	}
	got, err := receive("timed_readers", topic, rmq.SUB_ALL, 1, 20*time.Second)
	return seen{"early_ms": max(0, time.Until(due).Milliseconds()), "timed": got}, err
}

// transactions are committed, rolled back, and left to the check.
func transactions() (seen, error) {
	topic := prefix + "Transactions"
	var mutex sync.Mutex
	checks := 0
	checker := &rmq.TransactionChecker{Check: func(view *rmq.MessageView) rmq.TransactionResolution {
		mutex.Lock()
		defer mutex.Unlock()
		checks++
		if string(view.GetBody()) == "checked" {
			return rmq.COMMIT
		}
		return rmq.ROLLBACK
	}}
	p, err := producer(rmq.WithTopics(topic), rmq.WithTransactionChecker(checker))
	if err != nil {
		return nil, err
	}
	defer p.GracefulStop()
	for _, what := range []string{"committed", "rolled back", "checked", "checked and rolled back"} {
		transaction := p.BeginTransaction()
		if _, err := p.SendWithTransaction(context.Background(), text(topic, what), transaction); err != nil {
			return nil, err
		}
		switch what {
		case "committed":
			err = transaction.Commit()
		case "rolled back":
			err = transaction.RollBack()
		}
		if err != nil {
			return nil, err
		}
	}
	got, err := receive("transaction_readers", topic, rmq.SUB_ALL, 2, 60*time.Second)
	if err != nil {
		return nil, err
	}
	until(30*time.Second, func() bool {
		mutex.Lock()
		defer mutex.Unlock()
		return checks >= 2
	})
	more, err := receive("transaction_readers", topic, rmq.SUB_ALL, 1, 4*time.Second)
	return seen{"transactions": append(got, more...)}, err
}

// push sees a message that fails once again; one that always fails becomes a dead letter.
func push() (seen, error) {
	topic := prefix + "Pushed"
	var mutex sync.Mutex
	tries := map[string]int{}
	c, err := pushConsumer("pushed", topic, func(view *rmq.MessageView) rmq.ConsumerResult {
		mutex.Lock()
		defer mutex.Unlock()
		body := string(view.GetBody())
		tries[body]++
		if body == "never" || body == "twice" && tries[body] < 2 {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	})
	if err != nil {
		return nil, err
	}
	p, err := producer(rmq.WithTopics(topic))
	if err != nil {
		return nil, err
	}
	defer p.GracefulStop()
	for _, what := range []string{"once", "twice", "never"} {
		if err := send(p, text(topic, what)); err != nil {
			return nil, err
		}
	}
	until(60*time.Second, func() bool {
		mutex.Lock()
		defer mutex.Unlock()
		return tries["never"] >= 3 && tries["twice"] >= 2
	})
	time.Sleep(2 * time.Second)
	err = c.GracefulStop()
	return seen{"once": tries["once"], "twice": tries["twice"], "never": tries["never"]}, err
}

// kill sends and consumes until the file STOP exists; then every acknowledged message must have come.
func kill() (seen, error) {
	topic := prefix + "Normal"
	var mutex sync.Mutex
	times := map[string]int{}
	c, err := pushConsumer("kill_readers", topic, func(view *rmq.MessageView) rmq.ConsumerResult {
		mutex.Lock()
		defer mutex.Unlock()
		times[string(view.GetBody())]++
		return rmq.SUCCESS
	})
	if err != nil {
		return nil, err
	}
	p, err := producer(rmq.WithTopics(topic))
	if err != nil {
		return nil, err
	}
	defer p.GracefulStop()
	acknowledged := []string{}
	failures, longest, last := 0, time.Duration(0), time.Now()
	for number := 0; ; number++ {
		if _, err := os.Stat(os.Args[4]); err == nil {
			break
		}
		body := fmt.Sprintf("kill-%d", number)
		if err := send(p, text(topic, body)); err != nil {
			failures++
		} else {
			acknowledged = append(acknowledged, body)
			longest, last = max(longest, time.Since(last)), time.Now()
		}
		time.Sleep(5 * time.Millisecond)
	}
	lost, repeats := 0, 0
	until(60*time.Second, func() bool {
		mutex.Lock()
		defer mutex.Unlock()
		lost, repeats = 0, 0
		for _, body := range acknowledged {
			if times[body] == 0 {
				lost++
			}
		}
		for _, count := range times {
			repeats += count - 1
		}
		return lost == 0
	})
	err = c.GracefulStop()
	return seen{
		"sent": len(acknowledged), "lost": lost, "failures": failures, "gap_ms": longest.Milliseconds(),
		"repeats": repeats,
	}, err
}

func config(group string) *rmq.Config {
	// It demands credentials; a proxy without access control looks at none.
	nobody := &credentials.SessionCredentials{AccessKey: "nobody", AccessSecret: "nothing"}
	return &rmq.Config{Endpoint: endpoint, ConsumerGroup: group, Credentials: nobody}
}

func producer(options ...rmq.ProducerOption) (rmq.Producer, error) {
	p, err := rmq.NewProducer(config(""), options...)
	if err != nil {
		return nil, err
	}
	return p, p.Start()
}

func text(topic, body string) *rmq.Message {
	return &rmq.Message{Topic: topic, Body: []byte(body)}
}

func send(p rmq.Producer, message *rmq.Message) error {
	receipts, err := p.Send(context.Background(), message)
	if err == nil && len(receipts) != 1 {
		return fmt.Errorf("%d receipts", len(receipts))
	}
	return err
}

func consumer(group, topic string, filter *rmq.FilterExpression) (rmq.SimpleConsumer, error) {
	c, err := rmq.NewSimpleConsumer(config(prefix+group), rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: filter}))
	if err != nil {
		return nil, err
	}
	return c, c.Start()
}

func pushConsumer(
	group, topic string, listen func(*rmq.MessageView) rmq.ConsumerResult,
) (rmq.PushConsumer, error) {
	c, err := rmq.NewPushConsumer(config(prefix+group), rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: listen}))
	if err != nil {
		return nil, err
	}
	return c, c.Start()
}

// each gives what comes to handle until it returns true or the time is over.
func each(
	c rmq.SimpleConsumer, invisible, limit time.Duration, handle func(*rmq.MessageView) (bool, error),
) error {
	for end := time.Now().Add(limit); time.Now().Before(end); {
		views, err := c.Receive(context.Background(), 16, invisible)
		if err != nil {
			if status, ok := rmq.AsErrRpcStatus(err); ok && strings.Contains(status.Error(), "MESSAGE_NOT_FOUND") {
				continue
			}
			return err
		}
		done := false
		for _, view := range views {
			full, err := handle(view)
			if err != nil {
				return err
			}
			done = done || full
		}
		if done {
			return nil
		}
	}
	return nil
}

// receive acknowledges what comes until so many came, or the time is over; the bodies, sorted.
func receive(
	group, topic string, filter *rmq.FilterExpression, wanted int, limit time.Duration,
) ([]string, error) {
	c, err := consumer(group, topic, filter)
	if err != nil {
		return nil, err
	}
	defer c.GracefulStop()
	got := []string{}
	err = each(c, 30*time.Second, limit, func(view *rmq.MessageView) (bool, error) {
		got = append(got, string(view.GetBody()))
		return len(got) >= wanted, c.Ack(context.Background(), view)
	})
	sort.Strings(got)
	return got, err
}

func until(limit time.Duration, done func() bool) {
	for end := time.Now().Add(limit); !done() && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
	}
}
