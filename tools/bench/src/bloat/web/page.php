<?php
// An event with its comments, as a social calendar shows it; with `add`, after one more comment.
static $database = null;
$database ??= new mysqli('p:localhost', 'root', '', 'calendar', 0, getenv('DATABASE'));
$id = (int) $_GET['id'];
if (isset($_GET['add'])) {
    $database->query("INSERT INTO comments (event, body) VALUES ($id, REPEAT('well ', 20))");
}
$event = $database->query("SELECT title, body FROM events WHERE id = $id")->fetch_assoc();
$comments = $database->query("SELECT body FROM comments WHERE event = $id LIMIT 20");
$page = '<h1>' . htmlspecialchars($event['title']) . '</h1>';
foreach (explode('.', $event['body']) as $sentence) {
    $page .= '<p>' . htmlspecialchars(ucfirst(trim($sentence))) . '.</p>';
}
foreach ($comments as $comment) {
    $page .= '<li>' . htmlspecialchars($comment['body']) . '</li>';
}
header('Content-Length: ' . strlen($page));
echo $page;
